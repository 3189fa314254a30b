"""Sending: one by one, in batches, as Arrow tables, again with the same id, once by key, replacing by key."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pyarrow as pa

from simulation.model import Broken, Message
from simulation.world import KEYS, SPANS_MS, TOPICS, World
from tidemill.core.errors import DiskFullError, TooManyRequestsError
from tidemill.core.limits import DEDUPLICATION_MS
from tidemill.core.model import NO_TIME_MS, Draft, Once, SendResult

JITTERS_MS = (1, 300, 4_000)
FIFO_GROUPS = ("", "", "", "", "f1", "f2")


@dataclass
class Sending:
    """The acts of producers."""

    world: World
    crowded: int = 0  # refused because a tick was full
    repeats_with_jitter: int = 0

    def _due(self) -> int | None:
        if self.world.random.random() < 0.2:
            return None
        return self.world.now_ms + self.world.random.choice(SPANS_MS) + self.world.random.randrange(1500)

    def _draft(self, once: Once = Once.NO) -> Draft:
        body = self.world.new_body()
        key = (
            self.world.random.choice(KEYS)
            if once is not Once.NO or self.world.random.random() < 0.3
            else None
        )
        has_id = key is not None or self.world.random.random() < 0.4
        level = self.world.random.randrange(1, 8) if self.world.random.random() < 0.25 else 0
        due = None if level else self._due()
        is_due = due is None and once is not Once.NO and not level
        due = self.world.now_ms + 7_000 if is_due else due
        group = self.world.random.choice(FIFO_GROUPS) if once is Once.NO else ""
        may_jitter = due is not None and not group and self.world.random.random() < 0.3
        return Draft(
            topic=self.world.random.choice(TOPICS),
            body=body,
            deliver_at_ms=due,
            jitter_ms=self.world.random.choice(JITTERS_MS) if may_jitter else 0,
            level=level,
            id=f"id-{self.world.made}" if has_id else None,
            keys=(key,) if key else (),
            tag=self.world.random.choice(("", "a", "b")),
            message_group=group,
            once=once,
        )

    def _begin(self, draft: Draft) -> Message:
        due = self._due_of(draft)
        message = Message(
            draft.body,
            self.world.model.topic_life(draft.topic),
            draft.id,
            draft.keys,
            draft.tag,
            draft.message_group,
            set() if due is None else possible_dues(max(due, 0), draft.jitter_ms),
            self.world.model.turn,
            self.world.now_ms,
        )
        if draft.jitter_ms:
            message.asked_ms, message.jitter_ms = due, draft.jitter_ms
        if draft.level:
            message.level_delay_ms = min(message.dues) - self.world.now_ms
        self.world.model.messages[draft.body] = message
        return message

    def _due_of(self, draft: Draft) -> int | None:
        if not draft.level:
            return draft.deliver_at_ms
        delays_ms = self.world.broker.settings.level_delays_ms
        return self.world.now_ms + delays_ms[min(draft.level, len(delays_ms)) - 1]

    def _send(self, drafts: list[Draft]) -> bool:
        """Whether they were taken."""
        messages = [self._begin(draft) for draft in drafts]
        try:
            receipts = self.world.broker.send(drafts)
        except DiskFullError:
            self.world.refused(messages)
            return False
        except TooManyRequestsError:
            self._crowded(messages)
            return False
        self.world.model.sync_topics(self.world.broker)
        for message, receipt in zip(messages, receipts, strict=True):
            if receipt.is_repeat:
                raise Broken(f"{message.body!r} is new and was called a repeat: {receipt}")
            self._stored(message, receipt)
        return True

    def _stored(self, message: Message, receipt: SendResult) -> None:
        is_timed = receipt.deliver_at_ms is not None
        if is_timed != message.is_timed or (receipt.handle is None) == is_timed:
            raise Broken(f"{message} got the receipt {receipt}")
        if is_timed:
            if receipt.deliver_at_ms not in message.dues:
                raise Broken(f"{message} got the receipt {receipt}, with another time")
            message.dues = {receipt.deliver_at_ms}
            self._require_room(message)
        message.is_stored, message.is_cancelled, message.id = True, False, receipt.id
        if receipt.handle is not None:
            message.handles.append(receipt.handle)

    def _require_room(self, message: Message) -> None:
        """One that was accepted had space in its tick, beside those that waited and those taken with it."""
        settings = self.world.broker.settings
        waiting = self.world.model.waiting_in_tick(message.topic.name, message.due_ms, settings.tick_ms)
        if settings.due_per_tick_max and waiting >= settings.due_per_tick_max:
            raise Broken(f"{message} was taken into a tick in which {waiting} wait")

    def _crowded(self, messages: list[Message]) -> None:
        """The broker said that a tick is full: then one may be, and nothing was stored."""
        self.crowded += 1
        settings = self.world.broker.settings
        most = settings.due_per_tick_max
        could_fall: Counter[tuple[str, int]] = Counter()  # by topic and tick; by chance one in several
        for message in messages:
            ticks = {due_ms // settings.tick_ms for due_ms in message.dues}
            could_fall.update((message.topic.name, tick) for tick in ticks)
        could_be = any(
            self.world.model.waiting_in_tick(topic, tick * settings.tick_ms, settings.tick_ms) + count > most
            for (topic, tick), count in could_fall.items()
        )
        if not most or not could_be:
            raise Broken(f"a send was refused for a full tick of {most}: {messages}")
        self.world.model.sync_topics(self.world.broker)
        for message in messages:
            message.is_stored = False

    def send_some(self) -> bool:
        """Whether they were taken."""
        return self._send([self._draft() for _ in range(self.world.random.choice((1, 1, 2, 5)))])

    def send_table(self) -> None:
        drafts = [self._draft() for _ in range(self.world.random.choice((1, 3, 20)))]
        messages = [self._begin(draft) for draft in drafts]
        table = pa.table(
            {
                "topic": [d.topic for d in drafts],
                "body": [d.body for d in drafts],
                "deliver_at": pa.array([d.deliver_at_ms for d in drafts], pa.int64()),
                "jitter_ms": pa.array([d.jitter_ms for d in drafts], pa.int64()),
                "level": pa.array([d.level for d in drafts], pa.int32()),
                "id": pa.array([d.id for d in drafts], pa.string()),
                "key": pa.array([d.keys[0] if d.keys else None for d in drafts], pa.string()),
                "tag": [d.tag for d in drafts],
                "message_group": [d.message_group for d in drafts],
            }
        )
        try:
            receipt = self.world.broker.send_table(table)
        except DiskFullError:
            self.world.refused(messages)
            return
        except TooManyRequestsError:
            self._crowded(messages)
            return
        self.world.model.sync_topics(self.world.broker)
        handles = iter(receipt.handles())
        for message, message_id, due in zip(
            messages, receipt.ids.to_pylist(), receipt.deliver_at_ms.tolist(), strict=True
        ):
            handle = next(handles) if due != NO_TIME_MS else None
            due_ms = None if handle is None else due
            self._stored(message, SendResult(message_id, message.topic.name, handle, due_ms))

    def send_again(self) -> None:
        """A client that got no answer (or did) sends the same message again."""
        candidates = [m for m in self.world.model.messages.values() if self._can_repeat(m)][-12:]
        if not candidates:
            return
        message = self.world.random.choice(candidates)
        was_stored = message.is_stored
        asked_ms = max(message.dues) if message.dues else None
        if message.jitter_ms:
            asked_ms = message.asked_ms
        draft = Draft(
            message.topic.name,
            message.body,
            deliver_at_ms=asked_ms,
            jitter_ms=message.jitter_ms,
            id=message.id,
            keys=message.keys,
            tag=message.tag,
            message_group=message.group,
        )
        if not was_stored:
            message.is_stored, message.is_cancelled, message.level_delay_ms = None, False, 0
            message.turn, message.born_ms = self.world.model.turn, self.world.now_ms
            if message.asked_ms is not None:
                message.dues = possible_dues(max(message.asked_ms, 0), message.jitter_ms)
        try:
            (receipt,) = self.world.broker.send([draft])
        except DiskFullError:
            self.world.refused([] if was_stored else [message])
            return
        except TooManyRequestsError:
            if was_stored:
                raise Broken(f"{message} is there, and was refused when it was sent again") from None
            self._crowded([message])
            return
        self.world.model.sync_topics(self.world.broker)
        if receipt.is_repeat != bool(was_stored):
            raise Broken(f"{message} was sent again, and the answer is {receipt}")
        if not was_stored:
            self._stored(message, receipt)
        elif message.is_pending and receipt.deliver_at_ms != message.due_ms:
            raise Broken(f"{message} was sent again, and got another time: {receipt}")
        self.repeats_with_jitter += bool(was_stored and message.jitter_ms)

    def _can_repeat(self, message: Message) -> bool:
        """Whether the broker must know by its id if this message is there."""
        if message.topic.is_gone or message.id is None or not message.id.startswith("id-"):
            return False
        if not message.is_stored:
            return True
        is_recent = self.world.now_ms - message.born_ms < DEDUPLICATION_MS
        return is_recent and (message.is_pending or not self.world.model.has_cut)

    def send_once(self) -> None:
        once = self.world.random.choice((Once.KEEP, Once.REPLACE))
        draft = self._draft(once)
        waiting = self.world.model.pending(draft.topic, draft.keys[0])
        message = self._begin(draft)
        possible = message.dues
        doubted = [(m, m.dues) for m in waiting]
        if once is Once.REPLACE:
            for other, dues in doubted:
                other.dues = dues | possible
        try:
            (receipt,) = self.world.broker.send([draft])
        except DiskFullError:
            for other, dues in doubted:
                other.dues = dues
            self.world.refused([message])
            return
        except TooManyRequestsError:
            for other, dues in doubted:
                other.dues = dues
            if waiting:
                raise Broken(f"{message} repeats one that waits, and was refused") from None
            self._crowded([message])
            return
        self.world.model.sync_topics(self.world.broker)
        for other, dues in doubted:
            other.dues = dues
        if receipt.is_repeat != bool(waiting):
            raise Broken(f"{len(waiting)} wait with key {draft.keys}, and the answer is {receipt}")
        if not waiting:
            self._stored(message, receipt)
            return
        message.is_stored = False
        kept = self.world.model.with_id(draft.topic, receipt.id)
        if kept not in waiting or receipt.handle is None:
            raise Broken(f"{receipt} repeats a message that does not wait with key {draft.keys}")
        if once is Once.REPLACE:
            if receipt.deliver_at_ms not in possible:
                raise Broken(f"{kept} was moved to {receipt.deliver_at_ms}, which was not asked for")
            kept.dues, kept.turn, kept.level_delay_ms = {receipt.deliver_at_ms}, self.world.model.turn, 0
        if receipt.deliver_at_ms != kept.due_ms:
            raise Broken(f"{receipt} says another time than {kept}")
        kept.handles.append(receipt.handle)


def possible_dues(asked_ms: int, jitter_ms: int) -> set[int]:
    """The times a message may be due at."""
    return set(range(asked_ms, asked_ms + jitter_ms + 1))
