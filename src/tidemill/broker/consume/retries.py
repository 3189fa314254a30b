"""The two verbs for a failed delivery: retry, where the message stays, and send-back, where it moves.

Owns when no attempt is left: the message goes to the dead letters at once. Else it waits as the group's table
of pauses says, unless the consumer chooses: a retry may name a delay, a send-back a level. The table is the
group's own (`groups set --backoff`); without one it is RocketMQ's, the delay levels from the third on, so a
message that failed for the n-th time waits on level n + 2. Past its end the last entry repeats. Whatever path
a failure comes by, `pause_after` is asked, so a group waits the same everywhere.

A retry leaves the message in its queue, out of sight until its time. A send-back makes it a timed message of
`%RETRY%group`, which is merged into what that group receives and into nothing else; it waits, is listed,
forecast and cancelled like any other. The frame that stores it settles the delivery it takes the place of, so
it is in exactly one of the two. In a FIFO group nothing may pass it: there a send-back is a retry.

    level 0      the group's table
    level n      that level
    level -1     dead letters, at once; also after the last attempt
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from tidemill.broker.change.topic_admin import TopicAdmin
from tidemill.broker.consume.ack_tokens import DeliveryName, decode_ack_token, group_queue_held
from tidemill.broker.consume.acks import Acks
from tidemill.broker.consume.dead_letters import dead_letter, origin_name, retry_properties
from tidemill.broker.consume.receiver import INVISIBLE_MS_MAX
from tidemill.broker.send.admission import DEAD_LETTER_PREFIX, RETRY_PREFIX
from tidemill.broker.send.service import SendService
from tidemill.broker.send.write_context import WriteContext
from tidemill.core.answers import NackResult
from tidemill.core.arguments import require_kind, require_whole
from tidemill.core.config import BrokerSettings
from tidemill.core.levels import clamped_level, level_delays_ms
from tidemill.core.model import NO_TIME_MS, Handle, MessageType, StoredMessage
from tidemill.store.commit_log import CommitLog
from tidemill.store.consumers.consumer_log import change_rows
from tidemill.store.consumers.consumer_state import ACT_CHANGE, Group, GroupQueue
from tidemill.store.formats.frames import Settlement
from tidemill.store.formats.framing import framed
from tidemill.store.formats.new_messages import NewMessages
from tidemill.store.message_store import MessageStore
from tidemill.store.topics import Topic

TO_DEAD_LETTERS = -1  # a level
_LEVEL_MAX = 1 << 31


class SendBackAnswer(StrEnum):
    AGAIN = "again"  # it comes again
    DEAD = "dead"  # it is among the dead letters
    INVALID = "invalid"  # the ack token is no longer the valid one


_INVALID = NackResult(SendBackAnswer.INVALID)


@dataclass(frozen=True, slots=True)
class _Given:
    """One delivery that is given back, as its ack token says."""

    group: Group
    topic: Topic
    group_queue: GroupQueue
    name: DeliveryName

    @property
    def offset(self) -> int:
        return self.name.offset

    @property
    def attempt(self) -> int:
        return self.name.attempt

    def is_last(self, level: int = 0) -> bool:
        return level < 0 or self.attempt >= self.group.attempts_max


class Retries(WriteContext):
    """The verbs retry and send-back. Thread-safe."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicAdmin,
        sender: SendService,
        settings: BrokerSettings,
        broker_id: str,
        now_ms: Callable[[], int],
        settler: Acks,
    ) -> None:
        super().__init__(store, topics, sender, settings, broker_id, now_ms)
        self._settler = settler

    def retry(self, ack_tokens: Sequence[str], delay_ms: int | None = None) -> list[NackResult]:
        """Let deliveries that failed be tried again where they are; says of each when, or that it is dead.

        After the pause of their group, or after `delay_ms`.
        """
        require_kind("ack_tokens", ack_tokens, (list, tuple), "a list of texts")
        if delay_ms is not None:
            require_whole("delay_ms", delay_ms, 0, INVISIBLE_MS_MAX)
        given = [self._given(decode_ack_token(ack_token)) for ack_token in ack_tokens]
        spent = [index for index, g in enumerate(given) if g is not None and g.is_last()]
        now_ms = self._now_ms()
        due_ms = {
            index: now_ms + (self._pause(g)[0] if delay_ms is None else delay_ms)
            for index, g in enumerate(given)
            if g is not None and not g.is_last()
        }
        answers = [_INVALID] * len(given)
        is_put_off = self._settler.put_off([ack_tokens[index] for index in due_ms], list(due_ms.values()))
        for (index, at_ms), is_valid in zip(due_ms.items(), is_put_off, strict=True):
            if is_valid:
                answers[index] = NackResult(SendBackAnswer.AGAIN, at_ms)
        if spent:
            dead = self.send_back([ack_tokens[index] for index in spent])
            for index, answer in zip(spent, dead, strict=True):
                answers[index] = answer
        return answers

    def send_back(self, ack_tokens: Sequence[str], level: int = 0) -> list[NackResult]:
        """Give deliveries back; says of each when it comes again, or that it is dead."""
        require_kind("ack_tokens", ack_tokens, (list, tuple), "a list of texts")
        require_whole("level", level, -1, _LEVEL_MAX)
        given = [self._given(decode_ack_token(ack_token)) for ack_token in ack_tokens]
        # Topics are made before the locks are taken: each is a frame of its own.
        targets = [self._target(g, level) if g is not None else None for g in given]
        now_ms = self._now_ms()
        consumers = self._store.consumers
        answers, moved, staying = [_INVALID] * len(given), [], []
        # The writer's lock before the consumers', as everywhere.
        with self._store.write() as tx, consumers.lock:
            for index, (g, target) in enumerate(zip(given, targets, strict=True)):
                message = self._held(g) if g is not None else None
                if g is None or message is None:
                    continue
                consumers.settling.add((g.group_queue, g.offset))
                if target is None:
                    staying.append((index, g, self._pause(g, level)))
                else:
                    moved.append((index, g, self._stored(g, message, target, level, now_ms)))
            first_seq = tx.ledger.next_seq
            stored = self._append(tx, [(g, message) for _, g, (message, _) in moved], now_ms)
            end = self._stay([(g, now_ms + pause[0]) for _, g, pause in staying], now_ms)
        self._store.finish_written()
        consumers.wait(end)
        for messages, first in stored:
            self._sender.hand_over_new(messages, first)
        self._store.notifier.announce()
        seq = first_seq
        for index, g, (message, note) in moved:
            answers[index] = self._answer(g, message, seq, note)
            seq += message.deliver_at_ms != NO_TIME_MS
            self._note_level(g, note)
        for index, g, (pause_ms, _, note) in staying:
            answers[index] = NackResult(SendBackAnswer.AGAIN, now_ms + pause_ms, None, note)
            self._note_level(g, note)
        return answers

    def dead_letter(self, ack_tokens: Sequence[str]) -> list[bool]:
        """Move deliveries to the dead letters of their groups, whatever attempts are left."""
        answers = self.send_back(ack_tokens, TO_DEAD_LETTERS)
        return [sent.answer is SendBackAnswer.DEAD for sent in answers]

    def _note_level(self, given: _Given, note: str) -> None:
        if note:
            self._sender.clamped_levels.add(given.topic.name, note)

    # -- what an ack token means ---------------------------------------------------------------------

    def _given(self, name: DeliveryName) -> _Given | None:
        consumers, topics = self._store.consumers, self._store.topics
        with consumers.lock:
            group_queue = group_queue_held(name, consumers.state, topics)
            group, topic = consumers.state.group(name.group), topics.named(name.topic)
        return _Given(group, topic, group_queue, name) if group_queue and group and topic else None

    def _target(self, given: _Given, level: int) -> tuple[Topic, int] | None:
        """The queue that the message goes to; None: it stays in its own."""
        if given.is_last(level):
            letters = self._topics.find_or_create(DEAD_LETTER_PREFIX + given.group.name, is_internal=True)
            return letters, self._topics.choose_queue(letters, "")
        if given.group.is_fifo:
            return None
        if given.topic.name.startswith(RETRY_PREFIX):
            return given.topic, given.group_queue[2]
        return self._topics.retry_queue(given.group.name, given.topic)

    def _held(self, given: _Given) -> StoredMessage | None:
        """The message, if it is still out under this ack token and reads back. Call under both locks."""
        consumers = self._store.consumers
        group_queue = group_queue_held(given.name, consumers.state, self._store.topics)
        if group_queue != given.group_queue or (group_queue, given.offset) in consumers.settling:
            return None
        row = self._store.queues.read(given.group_queue[1:], given.offset, given.offset + 1)[0]
        place = int(row["place"])
        return None if self._store.is_expired(place) else self._store.readable(place)

    def _pause(self, given: _Given, level: int = 0) -> tuple[int, int, str]:
        """How long it rests, on which level, and a note for the answer; a chosen level wins."""
        delays_ms = self._settings.level_delays_ms
        if level == 0:
            pause = pause_after(given.group, given.attempt, delays_ms)
            return pause.ms, pause.level, ""
        used, note = clamped_level(level, delays_ms)
        return delays_ms[used - 1], used, note

    def _stored(
        self, given: _Given, message: StoredMessage, target: tuple[Topic, int], level: int, now_ms: int
    ) -> tuple[StoredMessage, str]:
        topic, queue_id = target
        origin = origin_name(message, given.topic)
        if given.is_last(level):
            return dead_letter(message, origin, topic.id, queue_id, given.attempt), ""
        pause_ms, used, note = self._pause(given, level)
        due_ms = now_ms + pause_ms
        stored = replace(
            message,
            topic_id=topic.id,
            queue_id=queue_id,
            type=MessageType.DELAY,
            level=used,
            flags=0,
            stored_at_ms=now_ms,
            deliver_at_ms=due_ms,
            properties=retry_properties(message, origin, given.attempt),
        )
        return stored, note

    # -- storing ----------------------------------------------------------------------------------

    def _append(
        self, tx: CommitLog, rows: Sequence[tuple[_Given, StoredMessage]], now_ms: int
    ) -> list[tuple[NewMessages, int]]:
        """Append the messages, in as many frames as they need; says what each holds from which seq on.

        Call under both locks.
        """
        stored, done = [], 0
        try:
            for part in framed([message for _, message in rows]):
                settles = [
                    Settlement(g.group.name, g.group_queue[1], g.group_queue[2], g.offset)
                    for g, _ in rows[done : done + len(part)]
                ]
                messages = self._sender.planned(part, now_ms)
                stored.append((messages, tx.send_back(messages, settles, now_ms).first_seq))
                done += len(part)
        finally:
            for g, _ in rows[done:]:
                self._store.consumers.settling.discard((g.group_queue, g.offset))
        return stored

    def _stay(self, rows: Sequence[tuple[_Given, int]], now_ms: int) -> int:
        """Put off what stays in its queue. Call under both locks."""
        consumers, end = self._store.consumers, 0
        for g, due_ms in rows:
            consumers.settling.discard((g.group_queue, g.offset))
            put_off = change_rows(ACT_CHANGE, g.group_queue, [g.offset], g.name.number, due_ms)
            end = consumers.append(put_off, now_ms)
        return end

    def _answer(self, given: _Given, message: StoredMessage, seq: int, note: str) -> NackResult:
        if message.deliver_at_ms == NO_TIME_MS:
            return NackResult(SendBackAnswer.DEAD)
        handle = Handle(self._broker_id, RETRY_PREFIX + given.group.name, message.id, seq)
        return NackResult(SendBackAnswer.AGAIN, message.deliver_at_ms, handle, note)


_FIRST_LEVEL = 3


@dataclass(frozen=True, slots=True)
class Pause:
    """One entry of a table."""

    ms: int
    level: int = 0  # which delay level it is; 0: none, it comes from a table of the group's own


@lru_cache(64)
def _table(backoff: str, levels_ms: tuple[int, ...]) -> tuple[Pause, ...]:
    if backoff:
        return tuple(Pause(ms) for ms in level_delays_ms(backoff))
    first = min(_FIRST_LEVEL, len(levels_ms))
    return tuple(Pause(levels_ms[level - 1], level) for level in range(first, len(levels_ms) + 1))


def pauses_of(group: Group, levels_ms: tuple[int, ...]) -> tuple[Pause, ...]:
    """The table of a group: the pause after the first failed attempt, the second …"""
    return _table(group.backoff, levels_ms)


def pause_after(group: Group, attempt: int, levels_ms: tuple[int, ...]) -> Pause:
    """How long a message rests that failed on this attempt, the first being 1."""
    table = pauses_of(group, levels_ms)
    return table[min(max(attempt, 1), len(table)) - 1]
