"""What must be true, kept in plain Python beside the broker: every message, and what became of it.

The model knows nothing of logs, seqs or timers. It is given what was asked (`begin`), what was answered, and
looks at the broker only through what any user can see: queues by offset, and the list of what is pending.
An operation that a crash cut short leaves its messages *in doubt*; after the next opening the broker must
show one of the allowed outcomes, and from then on that outcome is as binding as an answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulation.breaking import Broken as Broken
from simulation.holding import HeldModel
from simulation.retries import RETRY, LetterKey, Retries, RetryKey, key_of
from tidemill.core.model import NO_TIME_MS, Handle

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.query.message_history import MessageView

DLQ = "%DLQ%"
_ALL = 1 << 30


@dataclass
class Seen:
    """Where a message was found in its topic."""

    queue_id: int
    offset: int
    released_at_ms: int


@dataclass
class Message:
    """One message and everything that may be true of it. `body` names it: no two are alike."""

    body: bytes
    topic: TopicLife = field(repr=False)
    id: str | None
    keys: tuple[str, ...]
    tag: str
    group: str
    dues: set[int]  # times it may be due at; empty: not timed
    turn: int  # when it (last) entered, in operations
    born_ms: int
    is_stored: bool | None = None  # None: in doubt
    is_cancelled: bool | None = False
    handles: list[Handle] = field(default_factory=list)
    seen: Seen | None = None
    unseen_at: int = 0  # the last turn at which it was certainly not in its topic
    level_delay_ms: int = 0  # of its level; 0: on none (any more)
    asked_ms: int | None = None  # the time that was asked for, where a jitter moves it
    jitter_ms: int = 0
    is_turn_known: bool = True  # False: a crash cut a move short, so it may have entered again at that turn

    @property
    def is_timed(self) -> bool:
        return bool(self.dues)

    @property
    def is_pending(self) -> bool:
        return self.is_timed and bool(self.is_stored) and self.is_cancelled is False and self.seen is None

    @property
    def due_ms(self) -> int:
        (due,) = self.dues
        return due


@dataclass
class TopicLife:
    """A topic from its creation to its deletion; a name may have several lives."""

    name: str
    queue_count: int
    id: int
    is_paused: bool = False
    rate: int = 0
    is_gone: bool = False
    rows: dict[tuple[int, int], tuple[bytes, int]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    groups: dict[str, list[Message]] = field(default_factory=dict)  # message group -> in order of release

    @property
    def is_free(self) -> bool:
        """True when nothing but their time holds its messages back."""
        return not self.is_paused and not self.rate and not self.is_gone


class Model:
    """Messages by body, topics by name, and the rules between them and what the broker shows."""

    def __init__(self) -> None:
        self.messages: dict[bytes, Message] = {}
        self.topics: dict[str, TopicLife] = {}
        self.past: list[TopicLife] = []
        self.buried: dict[LetterKey, Seen] = {}  # dead letters
        self.given_up: set[LetterKey] = set()  # those, and those that were resent
        self.resends: set[str] = set()  # groups for whose letters a resend was asked
        self.resent_count = 0
        self.halves: dict[bytes, Message] = {}  # transactions without an end
        self.ending: tuple[bytes, bool] | None = None  # a half whose end was cut short; True: committed
        self.retries = Retries()
        self.holds = HeldModel()
        self.deleting: str | None = None
        self.turn = 0
        self.looked_at_ms = 0
        self.latest_ms = 0  # the latest time the clock can have shown since the look before this one
        self.head = 0
        self.has_cut = False  # the log's head was cut at least once
        self.late_ms_max = 0  # more than 0 where files are damaged, and the sweep finds what a timer forgot

    # -- finding ----------------------------------------------------------------------------------

    def pending(self, topic: str | None = None, key: str | None = None) -> list[Message]:
        return [
            m
            for m in self.messages.values()
            if m.is_pending
            and (topic is None or m.topic.name == topic)
            and (key is None or key in m.keys)
            and not m.topic.is_gone
        ]

    def handled(self) -> list[Message]:
        """Messages that have a handle to be cancelled or moved by."""
        return [m for m in self.messages.values() if m.handles and not m.topic.is_gone]

    def waiting_in_tick(self, topic: str, due_ms: int, tick_ms: int) -> int:
        """How many messages of a topic wait for a time in the same tick."""
        return sum(m.due_ms // tick_ms == due_ms // tick_ms for m in self.pending(topic))

    def with_id(self, topic: str, message_id: str) -> Message:
        found = [m for m in self.messages.values() if m.id == message_id and m.topic is self.topics[topic]]
        if len(found) != 1:
            raise Broken(f"a receipt names {message_id!r} in {topic}, which {len(found)} messages have")
        return found[0]

    # -- topics -----------------------------------------------------------------------------------

    def sync_topics(self, broker: Broker) -> None:
        """Meet topics that came into being, and let those go whose deletion was asked for."""
        present = {topic.name: topic for topic in broker.store.topics}
        for name, life in list(self.topics.items()):
            found = present.get(name)
            if found is not None and found.id == life.id:
                life.is_paused, life.rate = found.is_paused, found.release_rate_max
                life.queue_count = found.queue_count  # a retry topic grows
            elif self.deleting == name:
                self.topic_deleted(name)
            else:
                raise Broken(f"topic {name} has gone")
        self.deleting = None
        for name, found in present.items():
            if name not in self.topics:
                self.topics[name] = TopicLife(
                    name, found.queue_count, found.id, found.is_paused, found.release_rate_max
                )
        ids = [life.id for life in (*self.topics.values(), *self.past)]
        if len(set(ids)) != len(ids):
            raise Broken("a topic id was used twice")
        for message in [*self.messages.values(), *self.halves.values()]:
            if message.topic.id < 0 and message.topic.name in self.topics:
                message.topic = self.topics[message.topic.name]

    def topic_deleted(self, name: str) -> None:
        life = self.topics.pop(name)
        life.is_gone = True
        self.past.append(life)
        self.halves = {body: half for body, half in self.halves.items() if half.topic is not life}

    def topic_life(self, name: str) -> TopicLife:
        """The topic's present life, or a stand-in for one that a send will begin."""
        return self.topics.get(name) or TopicLife(name, 0, -1)

    # -- looking at the queues --------------------------------------------------------------------

    def poll(self, broker: Broker, *, is_thorough: bool = False) -> None:
        """Look at everything new in all queues; thoroughly: at everything that has not expired."""
        self.sync_topics(broker)
        now_ms = broker.clock.now_ms()
        self.looked_at_ms, self.latest_ms = now_ms, max(now_ms, self.looked_at_ms)
        head = broker.store.log.head
        if head < self.head:
            raise Broken(f"the head of the log went back from {self.head} to {head}")
        self.has_cut = self.has_cut or head > 0
        self.head = head
        for life in list(self.topics.values()):
            for queue_id in range(life.queue_count):
                self._poll_queue(broker, life, queue_id, is_thorough)
        for message in self.messages.values():
            if message.seen is None:
                message.unseen_at = self.turn
                if message.is_stored and not message.is_timed and not message.topic.is_gone:
                    raise Broken(f"{message.body!r} was sent without a time and is not in its topic")

    def _poll_queue(self, broker: Broker, life: TopicLife, queue_id: int, is_thorough: bool) -> None:
        known_end = life.ends.get(queue_id, 0)
        end = broker.store.queues.end((life.id, queue_id))
        if end < known_end:
            raise Broken(f"queue {queue_id} of {life.name} ended at {known_end} and now at {end}")
        first = 0 if is_thorough else known_end
        if first >= end:
            return
        rows = broker.views.read(life.name, queue_id, first, _ALL)
        for row in rows:
            if row.offset < known_end:
                known = life.rows.get((queue_id, row.offset))
                if known != (row.message.body, row.released_at_ms):
                    raise Broken(
                        f"offset {row.offset} of queue {queue_id} of {life.name} held {known}, "
                        f"now {row.message.body!r} of {row.released_at_ms}"
                    )
            else:
                self._arrived(life, row)
        missing = set(range(known_end, end)) - {row.offset for row in rows}
        if missing:
            raise Broken(f"offsets {sorted(missing)} of queue {queue_id} of {life.name} were never readable")
        life.ends[queue_id] = end

    def _arrived(self, life: TopicLife, row: MessageView) -> None:
        life.rows[row.queue_id, row.offset] = (row.message.body, row.released_at_ms)
        seen = Seen(row.queue_id, row.offset, row.released_at_ms)
        if life.name.startswith(DLQ):
            origin = row.message.properties["DLQ_ORIGIN_TOPIC"]
            key = (life.name.removeprefix(DLQ), origin, row.message.body)
            if key in self.buried:
                raise Broken(f"{key} is twice among the dead letters: {self.buried[key]} and {seen}")
            self.buried[key] = seen
            self.given_up.add(key)
            return
        if life.name.startswith(RETRY) and key_of(life.name, row.message)[2] == 0:
            self._resent(life.name.removeprefix(RETRY), row)
            return
        if self.holds.releases and row.message.deliver_at_ms != NO_TIME_MS:
            raise Broken(f"{row.message.body!r} is in {life.name} although releases are held")
        if life.name.startswith(RETRY):
            self.retries.arrived(life.name, row, self.latest_ms)
            return
        message = self.messages.get(row.message.body)
        if message is None:
            raise Broken(f"{row.message.body!r} is in {life.name} and was never sent")
        if message.topic is not life:
            raise Broken(f"{message.body!r} was sent to another {life.name}")
        if message.seen is not None:
            raise Broken(f"{message.body!r} is twice in {life.name}: {message.seen} and {seen}")
        if message.is_stored is False:
            raise Broken(f"{message.body!r} was refused and is in {life.name}")
        if message.is_cancelled:
            raise Broken(f"{message.body!r} was cancelled and is in {life.name}")
        if message.is_timed:
            due_ms = row.message.deliver_at_ms
            if due_ms not in message.dues:
                raise Broken(f"{message.body!r} was released for {due_ms}, not for {message.dues}")
            early_ms = due_ms - min(row.released_at_ms, self.latest_ms)
            if early_ms > 0:
                raise Broken(f"{message.body!r} went {early_ms} ms early")
            message.dues = {due_ms}
        if (row.message.keys, row.message.tag, row.message.message_group) != (
            message.keys,
            message.tag,
            message.group,
        ):
            raise Broken(f"{message.body!r} is not what was sent")
        message.seen, message.is_stored, message.is_cancelled = seen, True, False
        if message.group and message.is_timed:
            self._check_order(life.groups.setdefault(message.group, []), message)
        elif message.level_delay_ms:  # a group's order goes before that of a level
            name = f"level {message.level_delay_ms} of queue {row.queue_id}"
            self._check_order(life.groups.setdefault(name, []), message)

    def _resent(self, group: str, row: MessageView) -> None:
        """A dead letter is with its group once more: one that was a letter, and that a user resent."""
        key = (group, row.message.properties["RETRY_TOPIC"], row.message.body)
        if group not in self.resends or self.buried.pop(key, None) is None:
            raise Broken(f"{key} was resent and should not be")
        self.resent_count += 1

    def is_dead(self, key: LetterKey, *, is_resent: bool) -> bool:
        """True when a delivery of this message must not come (again)."""
        return key in (self.buried if is_resent else self.given_up)

    def check_letters(self, broker: Broker) -> None:
        """The open dead letters are those that were buried and not resent."""
        for group in broker.dead_letters.groups():
            listed = {
                (group, letter.topic, letter.message.body)
                for letter in broker.dead_letters.waiting(group, limit=100_000)
            }
            expected = {key for key in self.buried if key[0] == group}
            if not listed <= expected or (listed != expected and not self.has_cut):
                raise Broken(f"dead letters of {group} are {listed}, not {expected}")

    def _check_order(self, before: list[Message], message: Message) -> None:
        """By due time, then by arrival, among messages of a group or level that waited at the same time."""
        for other in before:
            both_waited = message.turn <= other.unseen_at and message.is_turn_known and other.is_turn_known
            # A retention move gives a message a new place in the order of arrival.
            is_later = (other.due_ms, 0 if self.has_cut else other.turn) > (
                message.due_ms,
                0 if self.has_cut else message.turn,
            )
            if both_waited and is_later:
                raise Broken(f"{message} came after {other}")
        before.append(message)

    # -- what is pending --------------------------------------------------------------------------

    def check_pending(self, broker: Broker) -> None:
        """The broker's list of what waits is the model's; what was in doubt is settled by it."""
        listed: dict[bytes, tuple[int, Handle]] = {}
        listed_retries: dict[RetryKey, int] = {}
        for waiting in broker.views.pending(limit=_ALL):
            place = int(broker.store.entry(waiting.seq)["place"])
            stored = broker.store.message(place)
            body = stored.body
            if waiting.topic.startswith(RETRY):
                key = key_of(waiting.topic, stored)
                if key in listed_retries:
                    raise Broken(f"{key} waits twice")
                listed_retries[key] = waiting.deliver_at_ms
                continue
            if body in listed:
                raise Broken(f"{body!r} is pending twice")
            listed[body] = (waiting.deliver_at_ms, waiting.handle)
        for body, (due_ms, handle) in listed.items():
            message = self.messages.get(body)
            if message is None:
                raise Broken(f"{body!r} is pending and was never sent")
            if message.seen or message.is_cancelled or message.is_stored is False or message.topic.is_gone:
                raise Broken(f"{body!r} is pending although it is settled: {message}")
            if due_ms not in message.dues:
                raise Broken(f"{body!r} is pending for {due_ms}, not for {message.dues}")
            message.is_stored, message.is_cancelled, message.dues = True, False, {due_ms}
            message.id = handle.id
            if not message.handles:
                message.handles = [handle]
        for message in self.messages.values():
            if message.body in listed or message.topic.is_gone:
                continue
            if message.is_pending:
                raise Broken(f"{message.body!r} is lost: {message}")
            if message.is_stored is None:
                message.is_stored = False
            if message.is_cancelled is None:
                message.is_cancelled = True
        self.retries.check_pending(listed_retries, self.given_up)
        self.check_letters(broker)
        total = sum(count for _, count in broker.views.forecast(horizon_ms=9_000_000))
        if total != len(listed) + len(listed_retries):
            raise Broken(f"the forecast counts {total}, {len(listed)}+{len(listed_retries)} are pending")

    def check_none_late(self, now_ms: int) -> None:
        """Everything that is due and that nothing holds back is in its topic."""
        if self.holds.releases:
            return
        for message in self.messages.values():
            # What the timer may not take in is not known here; messages of levels never go through it.
            may_wait = self.holds.absorbing and not (message.level_delay_ms and not message.group)
            is_free = message.topic.is_free and not may_wait
            if message.is_pending and is_free and message.due_ms <= now_ms - self.late_ms_max:
                raise Broken(f"{message.body!r} was due at {message.due_ms}, it is {now_ms}: {message}")
        if self.holds.absorbing:
            return
        for retry in self.retries.pending():
            if retry.due_ms <= now_ms - self.late_ms_max:
                raise Broken(f"{retry} is late, it is {now_ms}")

    def check_halves(self, broker: Broker) -> None:
        """Open transactions are those the model has; an end that was cut short happened or did not."""
        found = {
            broker.store.message(half.place).body: half for half in broker.store.open_transactions.values()
        }
        if self.ending is not None:
            body, is_commit = self.ending
            self.ending = None
            if body not in found:
                half = self.halves.pop(body)
                if is_commit:
                    message = self.messages[body]
                    if message.seen is None and message.is_stored is not True:
                        raise Broken(f"the transaction of {half.body!r} ended and its message is nowhere")
        for body, half in list(self.halves.items()):
            if body not in found:
                if half.is_stored:
                    raise Broken(f"the open transaction of {body!r} is lost")
                del self.halves[body]
            half.is_stored = True
        if strangers := found.keys() - self.halves.keys():
            raise Broken(f"transactions {strangers} are open that should not be")


def due_set(deliver_at_ms: int) -> set[int]:
    return set() if deliver_at_ms == NO_TIME_MS else {deliver_at_ms}
