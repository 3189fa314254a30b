"""One seed, one run, with damage to the commit log under a running broker.

As `lives.py`, but nothing crashes in the middle of an operation. Now and then some frames are damaged; while
they are, users cancel, move, look, let time pass and receive, and the broker may be closed and opened. Then
the bytes are put back, as from a backup, and all must hold that always holds. Only this is allowed:

- a group steps over a message whose bytes were damaged when it received;
- a reschedule leaves such a message where it is, and says so;
- opening refuses damage in the log's first frame.

What is delivered meanwhile is what was sent. Every damaged frame is noted, and every message in one that
waits or is in a queue is listed, and no other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from simulation.consumers import GROUPS, Consumers, Key
from simulation.damaged_log import LogDamage
from simulation.lives import Run
from simulation.model import DLQ, Broken, Message, Model, TopicLife
from simulation.retries import RETRY, LetterKey
from simulation.world import KEYS
from tidemill.broker.broker import Broker
from tidemill.broker.query.table_schemas import Wanted
from tidemill.core.errors import CorruptionError, DiskFullError
from tidemill.core.model import CancelAnswer, Delivery
from tidemill.store.damage import DamagedFrames
from tidemill.store.damaged_messages import damage_counts, damaged_messages
from tidemill.store.upkeep.log_scrub import LogScrub

_ALL = 1 << 20


class DamagedConsumers(Consumers):
    """Consumers that may have stepped over messages whose bytes were damaged."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.passed: set[Key] = set()  # what a group may have stepped over

    def settled(self, key: Key, *, answer: bool, is_live: bool) -> bool:
        held = self.taken[key]
        # One that was resent, ran out of attempts and was resent again is taken at two offsets.
        is_older = held.is_resent and (key[0], held.origin, held.body) in self.model.given_up
        is_certain = is_live and key not in self.passed and not is_older
        return super().settled(key, answer=answer, is_live=is_certain)

    def check_given(self, key: Key, topic: str, body: bytes) -> None:
        if key not in self.passed:
            super().check_given(key, topic, body)

    def check_retry_given(self, key: Key, origin: str, body: bytes, *, is_resent: bool) -> None:
        if key not in self.passed:
            super().check_retry_given(key, origin, body, is_resent=is_resent)


@dataclass
class Received:
    """What was received while bytes were damaged: the model hears of it when it can look again."""

    group: str
    life: TopicLife
    deliveries: list[Delivery]
    now_ms: int
    dead: dict[bool, set[LetterKey]]  # at that moment
    acked: list[bool] = field(default_factory=list)


class DamagedLogRun(Run):
    """A run whose commit log is damaged for a while, several times."""

    crash_chance = 0.0

    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed, directory)
        self.consumers: DamagedConsumers = DamagedConsumers(self.model)
        self._received: list[Received] = []

    @property
    def broker(self) -> Broker:
        return self.workload.world.broker

    def live(self) -> None:
        broker = self.open()
        for _ in range(self.random.randrange(5, 60)):
            self.workload.act()
            if self.random.random() < 0.15:
                self._damaged_for_a_while()
        self.check()
        if self.random.random() < 0.5:
            self.close(broker if broker is self.broker else self.broker)
        self._crash(0.5)
        self._between_lives()

    # -- while it is damaged ----------------------------------------------------------------------

    def _damaged_for_a_while(self) -> None:
        world, store = self.workload.world, self.broker.store
        world.look()
        found = {(t, k): len(self.broker.views.find(t, k)) for t in self._topics() for k in KEYS}
        damage = LogDamage(store, self.directory)
        damage.strike(self.random)
        self.events["damaged frame"] += len(damage.frames)
        self._look(found)
        for _ in range(self.random.randrange(3)):
            self.random.choice((self._cancel, self._reschedule, self._reschedule_key))(damage)
        self._check_reported(damage)
        self._note_passed(damage)
        spans_ms = world.look_every_ms
        for _ in range(self.random.randrange(5)):
            if self.random.random() < 0.5:
                span_ms = min(spans_ms, self.random.choice((1, 400, 5_000, 60_000)))
                spans_ms -= span_ms
                self.broker.advance_to(world.now_ms + span_ms)
                self.broker.run_due()
                self._note_passed(damage)
            else:
                self._receive()
        self._check_reported(damage)
        if self.random.random() < 0.4:
            self._open_again(damage)
        self._note_passed(damage)
        damage.undo()
        self.broker.store.log.forget_verified()
        self.broker.store.damaged = DamagedFrames()
        self._reconcile()

    def _topics(self) -> list[str]:
        return [name for name in self.model.topics if not name.startswith((DLQ, RETRY))]

    def _look(self, found: dict[tuple[str, str], int]) -> None:
        """No look fails, and none leaves anything out."""
        broker = self.broker
        for (topic, key), count in found.items():
            now = broker.views.find(topic, key)
            if len(now) != count:
                raise Broken(f"{count} messages of {topic} had the key {key}, now it is {len(now)}")
        waiting = broker.views.pending(limit=_ALL)
        if len(waiting) != len(self.model.pending()) + len(self.model.retries.pending()):
            raise Broken(f"{len(waiting)} are listed as pending")
        for table in ("pending", "history", "messages"):
            rows = sum(batch.num_rows for batch in broker.tables.read(Wanted(table)))
            if table == "pending" and rows != len(waiting):
                raise Broken(f"the table of what is pending has {rows} rows, {len(waiting)} wait")
        for message in self.model.handled()[-3:]:
            if message.id is not None and message.is_stored:
                broker.views.messages.story(message.topic.name, message.id)

    def _cancel(self, damage: LogDamage) -> None:
        changing = self.workload.changing
        self.random.choice((changing.cancel_handles, changing.cancel_key, changing.cancel_range))()

    def _waiting_damaged(self, damage: LogDamage) -> set[bytes]:
        """Bodies of what waits and is damaged."""
        store = self.broker.store
        places = [int(store.entry(p.seq)["place"]) for p in self.broker.views.pending(limit=_ALL)]
        return {damage.message(place).body for place in places if damage.holds(place)}

    def _moved(self, message: Message, due_ms: int) -> None:
        message.dues, message.turn, message.level_delay_ms = {due_ms}, self.model.turn, 0

    def _reschedule(self, damage: LogDamage) -> None:
        """Move some messages by their handles: damaged ones stay, and it is said of exactly those."""
        waiting = [m for m in self.model.pending() if m.handles]
        chosen = self.random.sample(waiting, min(4, len(waiting)))
        damaged = self._waiting_damaged(damage)
        try:
            results = self.broker.reschedule([m.handles[-1] for m in chosen], by_ms=7_000)
        except DiskFullError:
            return
        for message, result in zip(chosen, results, strict=True):
            is_damaged = message.body in damaged
            if (result.answer is CancelAnswer.DAMAGED) != is_damaged:
                raise Broken(f"the reschedule of {message} says {result}; damaged: {is_damaged}")
            if not is_damaged:
                if result.handle is None:
                    raise Broken(f"the reschedule of {message} says {result}")
                self._moved(message, message.due_ms + 7_000)
                message.handles.append(result.handle)

    def _reschedule_key(self, damage: LogDamage) -> None:
        topic, key = self.workload.world.some_topic(), self.random.choice(KEYS)
        if topic is None:
            return
        damaged = self._waiting_damaged(damage)
        movable = [m for m in self.model.pending(topic, key) if m.body not in damaged]
        try:
            count = self.broker.reschedule_where(topic, key=key, by_ms=9_000)
        except DiskFullError:
            return
        if count != len(movable):
            raise Broken(f"{count} were moved, {len(movable)} could be")
        for message in movable:
            self._moved(message, message.due_ms + 9_000)

    def _receive(self) -> None:
        world = self.workload.world
        topic, group = world.some_topic(), self.random.choice(GROUPS)
        if topic is None or group not in self.consumers.known_groups:
            return
        life = self.model.topics[topic]
        accepts = (lambda tag: tag == "a") if group == "tagged" else None
        # The model hears of this later, when some of what is given now may be a dead letter.
        letters = self.broker.dead_letters.waiting(group, limit=100_000)
        buried = {(group, letter.topic, letter.message.body) for letter in letters}
        dead = {True: buried, False: buried | self.model.given_up}
        deliveries = self.broker.receive(topic, group, count=9, invisible_ms=40_000, accepts_tag=accepts)
        received = Received(group, life, deliveries, world.now_ms, dead)
        if self.random.random() < 0.5:
            received.acked = self.broker.ack([d.ack_token for d in deliveries])
        self._received.append(received)

    def _note_passed(self, damage: LogDamage) -> None:
        """What lies in a damaged frame: every group may step over it."""
        store = self.broker.store
        for topic in store.topics:
            for queue_id in range(topic.queue_count):
                rows = store.queues.read((topic.id, queue_id), 0, _ALL)
                for offset, place in enumerate(rows["place"].tolist()):
                    if damage.holds(place):
                        groups = [group.name for group in store.consumers.state.groups()]
                        self.consumers.passed.update(
                            (g, topic.id, queue_id, offset) for g in {*groups, *GROUPS}
                        )

    def _check_reported(self, damage: LogDamage) -> None:
        """The damaged frames are noted, no other; and what waits or lies in a queue of them is listed."""
        store = self.broker.store
        LogScrub(store).run()
        head = store.log.head
        noted = {frame.offset for frame in store.damaged.since(head)}
        present = {offset for offset in damage.frames if offset >= head}
        # Neighbours without messages count as one: where the next begins is in the damaged bytes.
        unnoted = present - noted - {damage.frames[offset].end for offset in present}
        if not noted <= present or unnoted:
            raise Broken(f"damaged are {sorted(present)}, noted {sorted(noted)}")
        listed = list(damaged_messages(store))
        seqs = {m.seq for m in listed if m.state == "pending"}
        wanted = {
            p.seq
            for p in self.broker.views.pending(limit=_ALL)
            if damage.holds(int(store.entry(p.seq)["place"]))
        }
        if seqs != wanted:
            raise Broken(f"the seqs {sorted(seqs)} are listed as damaged, {sorted(wanted)} are")
        in_queues = {(m.topic_id, m.queue_id, m.offset) for m in listed if m.offset >= 0}
        # Where the clock was set back, the search by time may miss the row: then the offset is left out.
        without_offset = {m.seq for m in listed if m.state == "released" and m.offset < 0}
        for topic in store.topics:
            for queue_id in range(topic.queue_count):
                rows = store.queues.read((topic.id, queue_id), 0, _ALL)
                for offset, place in enumerate(rows["place"].tolist()):
                    is_listed = (topic.id, queue_id, offset) in in_queues
                    is_listed |= damage.holds(place) and int(rows[offset]["seq"]) in without_offset
                    if is_listed != (damage.holds(place) and place >> 16 >= head):
                        raise Broken(f"{rows[offset]} of {topic.name}/{queue_id}: listed is {is_listed}")
        counts = damage_counts(store)
        if counts.pending != len(wanted) or counts.frames != len(noted):
            raise Broken(f"{counts} are counted, {len(wanted)} wait in {len(noted)} frames")

    def _open_again(self, damage: LogDamage) -> None:
        head = self.broker.store.log.head
        self.broker.close()
        is_refused = False
        try:
            self._reopen()
        except CorruptionError as error:
            is_refused = True
            if f"offset {head} " not in str(error):
                raise
            damage.undo()
            damage.frames.clear()
            self._reopen()
        if is_refused:
            self.events["refused"] += 1
        elif head in damage.frames:
            raise Broken("opened, though the log's first frame is damaged")
        damage.store = self.broker.store

    def _reopen(self) -> None:
        self.workload.world.broker = self.shape.open(self.directory, self.clock, self.disk)

    # -- when it is whole again -------------------------------------------------------------------

    def _reconcile(self) -> None:
        """Let the model hear of what happened meanwhile."""
        world = self.workload.world
        world.look(is_thorough=True)
        for one in self._received:
            self.consumers.doubt(one.group, one.life)
            self.consumers.received(one.group, one.life, one.deliveries, one.now_ms, one.dead)
            for delivery, answer in zip(one.deliveries, one.acked, strict=False):
                source = self.consumers.source(one.life, delivery)
                key = (one.group, source.id, delivery.queue_id, delivery.offset)
                if self.consumers.settled(key, answer=answer, is_live=True):
                    self.consumers.taken[key].is_acked = True
        self._received.clear()
        self.check()


def run(seed: int, directory: Path) -> DamagedLogRun:
    """Run one seed in an empty directory; raises `Broken` where the broker did."""
    sim = DamagedLogRun(seed, directory)
    try:
        for _ in range(sim.random.randrange(1, 6)):
            sim.live()
        sim.finish()
    finally:
        sim.disk.close()
    return sim
