"""Sending: one by one, in batches, as Arrow tables, again with the same id, once by key, replacing by key."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from simulation.model import Broken, Message, due_set
from simulation.world import KEYS, SPANS_MS, TOPICS, World
from tidemill.core.errors import DiskFull
from tidemill.core.limits import DEDUPLICATION_MS
from tidemill.core.model import NO_TIME_MS, Draft, Once, Receipt

FIFO_GROUPS = ("", "", "", "", "f1", "f2")


@dataclass
class Sending:
    """The acts of producers."""

    world: World

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
        return Draft(
            topic=self.world.random.choice(TOPICS),
            body=body,
            deliver_at_ms=self.world.now_ms + 7_000 if is_due else due,
            level=level,
            id=f"id-{self.world.made}" if has_id else None,
            keys=(key,) if key else (),
            tag=self.world.random.choice(("", "a", "b")),
            message_group=self.world.random.choice(FIFO_GROUPS) if once is Once.NO else "",
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
            set() if due is None else {max(due, 0)},
            self.world.model.turn,
            self.world.now_ms,
        )
        if draft.level:
            message.level_delay_ms = min(message.dues) - self.world.now_ms
        self.world.model.messages[draft.body] = message
        return message

    def _due_of(self, draft: Draft) -> int | None:
        if not draft.level:
            return draft.deliver_at_ms
        delays_ms = self.world.broker.settings.level_delays_ms
        return self.world.now_ms + delays_ms[min(draft.level, len(delays_ms)) - 1]

    def _send(self, drafts: list[Draft]) -> None:
        messages = [self._begin(draft) for draft in drafts]
        try:
            receipts = self.world.broker.send(drafts)
        except DiskFull:
            self.world.refused(messages)
            return
        self.world.model.sync_topics(self.world.broker)
        for message, receipt in zip(messages, receipts, strict=True):
            if receipt.is_repeat:
                raise Broken(f"{message.body!r} is new and was called a repeat: {receipt}")
            self._stored(message, receipt)

    def _stored(self, message: Message, receipt: Receipt) -> None:
        message.is_stored, message.is_cancelled, message.id = True, False, receipt.id
        if due_set(receipt.deliver_at_ms) != message.dues or (receipt.handle is None) == message.is_timed:
            raise Broken(f"{message} got the receipt {receipt}")
        if receipt.handle is not None:
            message.handles.append(receipt.handle)

    def send_some(self) -> None:
        self._send([self._draft() for _ in range(self.world.random.choice((1, 1, 2, 5)))])

    def send_table(self) -> None:
        drafts = [self._draft() for _ in range(self.world.random.choice((1, 3, 20)))]
        messages = [self._begin(draft) for draft in drafts]
        table = pa.table(
            {
                "topic": [d.topic for d in drafts],
                "body": [d.body for d in drafts],
                "deliver_at": pa.array([d.deliver_at_ms for d in drafts], pa.int64()),
                "level": pa.array([d.level for d in drafts], pa.int32()),
                "id": pa.array([d.id for d in drafts], pa.string()),
                "key": pa.array([d.keys[0] if d.keys else None for d in drafts], pa.string()),
                "tag": [d.tag for d in drafts],
                "message_group": [d.message_group for d in drafts],
            }
        )
        try:
            receipt = self.world.broker.send_table(table)
        except DiskFull:
            self.world.refused(messages)
            return
        self.world.model.sync_topics(self.world.broker)
        handles = iter(receipt.handles())
        for message, message_id, due in zip(
            messages, receipt.ids.to_pylist(), receipt.deliver_at_ms.tolist(), strict=True
        ):
            handle = next(handles) if due != NO_TIME_MS else None
            self._stored(message, Receipt(message_id, message.topic.name, handle, due))

    def send_again(self) -> None:
        """A client that got no answer (or did) sends the same message again."""
        candidates = [m for m in self.world.model.messages.values() if self._can_repeat(m)][-12:]
        if not candidates:
            return
        message = self.world.random.choice(candidates)
        was_stored = message.is_stored
        draft = Draft(
            message.topic.name,
            message.body,
            deliver_at_ms=max(message.dues) if message.dues else None,
            id=message.id,
            keys=message.keys,
            tag=message.tag,
            message_group=message.group,
        )
        if not was_stored:
            message.is_stored, message.is_cancelled, message.level_delay_ms = None, False, 0
            message.turn, message.born_ms = self.world.model.turn, self.world.now_ms
        try:
            (receipt,) = self.world.broker.send([draft])
        except DiskFull:
            self.world.refused([] if was_stored else [message])
            return
        self.world.model.sync_topics(self.world.broker)
        if receipt.is_repeat != bool(was_stored):
            raise Broken(f"{message} was sent again, and the answer is {receipt}")
        if not was_stored:
            self._stored(message, receipt)

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
        due_ms = self._due_of(draft)
        assert due_ms is not None
        message = self._begin(draft)
        doubted = [(m, m.dues) for m in waiting]
        if once is Once.REPLACE:
            for other, dues in doubted:
                other.dues = dues | {due_ms}
        try:
            (receipt,) = self.world.broker.send([draft])
        except DiskFull:
            for other, dues in doubted:
                other.dues = dues
            self.world.refused([message])
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
            kept.dues, kept.turn, kept.level_delay_ms = {due_ms}, self.world.model.turn, 0
        if receipt.deliver_at_ms != kept.due_ms:
            raise Broken(f"{receipt} says another time than {kept}")
        kept.handles.append(receipt.handle)
