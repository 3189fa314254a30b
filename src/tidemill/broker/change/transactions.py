"""Transactions: an invisible first half, then a commit that stores it or a rollback that drops it.

Owns what a half keeps until its end and what the commit makes of it. The commit makes the seq: a delay or a
level given with the half counts from the commit, a delivery time stays as it was given. A half is found by
(topic, id); asking for the same half twice, or ending it the same way twice, answers as the first time.
A half that comes again after its commit (a send that was slow on its way) is not opened again, as its
check-back would make a second message; a rollback after the commit is refused, as the message is there.

An open half is offered for a check-back (`halves`, `read`) until it is ended; it is never dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidemill.broker.send.admission import check_draft, check_type, due_time_ms, level_due_ms
from tidemill.broker.send.content import content_of, id_of_other, require_same
from tidemill.broker.send.jitter import drawn_ms
from tidemill.broker.send.resolve import stored_before
from tidemill.broker.send.write_context import WriteContext
from tidemill.core.errors import IllegalIdError, UnknownTransactionError
from tidemill.core.levels import LEVEL_ASKED_MAX
from tidemill.core.model import NO_TIME_MS, Draft, Handle, MessageType, Once, SendResult, StoredMessage
from tidemill.core.property_names import HALF_DELAY_PROPERTY
from tidemill.store.formats.entry_format import place_of
from tidemill.store.open_transactions import OpenHalf, half_key
from tidemill.store.topics import Topic


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A half that waits for its end."""

    topic: str
    message: StoredMessage


class Transactions(WriteContext):
    """The half, commit and rollback verbs. Thread-safe."""

    def begin(self, drafts: Sequence[Draft], *, creates_topics: bool = True) -> list[SendResult]:
        """Store first halves, all or none; each needs an id of its own."""
        now_ms = self._now_ms()
        for draft in drafts:
            check_draft(draft, self._settings)
            due_time_ms(draft, self._settings, now_ms)
            if draft.id is None:
                raise IllegalIdError("a message of a transaction needs an id; commit and rollback name it")
        with self._sender.in_flight.hold(sum(len(draft.body) for draft in drafts)):
            ids = self._store_halves(drafts, now_ms, creates_topics)
        return [
            SendResult(message_id, draft.topic, None, None)
            for message_id, draft in zip(ids, drafts, strict=True)
        ]

    def _store_halves(self, drafts: Sequence[Draft], now_ms: int, creates_topics: bool) -> list[str]:
        """The ids under which the halves are known."""
        with self._store.write() as tx:
            for draft in drafts:  # before the first of them makes its topic
                known = tx.topics.named(draft.topic)
                if known is not None:
                    check_type(MessageType.TRANSACTION, known.name, known.type)
                elif creates_topics:
                    self._store.ballast.require_whole()
                else:
                    self._topics.require(draft.topic)
            fresh: dict[str, StoredMessage] = {}
            ids = []
            for given in drafts:
                topic = self._topics.ensure(tx, given.topic)
                is_known, first = self._first_with_id(fresh, topic, given.id or "", now_ms)
                draft = _told_apart(given, first)
                ids.append(draft.id or "")
                if draft is not given:
                    is_known, first = self._first_with_id(fresh, topic, ids[-1], now_ms)
                if first is not None:
                    by_key = draft.once is not Once.NO and bool(draft.keys)
                    require_same(content_of(draft), content_of(first), first.id, topic.name, by_key=by_key)
                if not is_known:
                    fresh[half_key(topic.id, ids[-1])] = self._half(draft, topic, now_ms)
            if fresh:
                tx.put_halves(list(fresh.values()), now_ms)
        self._store.finish_written()
        return ids

    def _first_with_id(
        self, fresh: Mapping[str, StoredMessage], topic: Topic, message_id: str, now_ms: int
    ) -> tuple[bool, StoredMessage | None]:
        """Whether a half with this id is new or open, or a message was stored with it; and which that is.

        A message whose bytes are damaged is known, but not which it is. A damaged half is stored again: by
        itself it can only be rolled back.
        """
        key = half_key(topic.id, message_id)
        if key in fresh:
            return True, fresh[key]
        half = self._store.open_transactions.get(key)
        if half is not None:
            message = self._store.readable(half.place)
            return message is not None, message
        stored = stored_before(self._store, topic.id, message_id, now_ms)
        return (False, None) if stored is None else (True, stored.message)

    def commit(self, topic_name: str, message_id: str) -> SendResult:
        """Store the message of a transaction; from now on it is like any other."""
        with self._store.write() as tx:
            topic = self._topics.require(topic_name)
            half = tx.open_transactions.get(half_key(topic.id, message_id))
            if half is None:
                return self._committed_before(topic, message_id)
            now_ms = self._now_ms()
            message, note = self._committed(self._store.message(half.place), now_ms)
            planned = self._sender.planned([message], now_ms, in_order=bool(message.message_group))
            appended = tx.end_half(half, planned, now_ms)
        self._store.finish(appended)
        if note:
            self._sender.clamped_levels.add(topic.name, note)
        if message.deliver_at_ms == NO_TIME_MS:
            return self._placed(topic, message.id, place_of(appended.offset, 0))
        self._sender.hand_over_new(planned, appended.first_seq)
        handle = Handle(self._broker_id, topic.name, message.id, appended.first_seq)
        return SendResult(message.id, topic.name, handle, message.deliver_at_ms)

    def roll_back(self, topic_name: str, message_id: str) -> None:
        """Drop the message of a transaction; one that was never begun, or dropped before, is no error."""
        with self._store.write() as tx:
            topic = self._topics.require(topic_name)
            half = tx.open_transactions.get(half_key(topic.id, message_id))
            if half is None:
                if self._is_stored(topic, message_id):
                    raise UnknownTransactionError(
                        f"the transaction of message {message_id!r} in topic {topic.name!r} is committed; "
                        "it cannot be rolled back any more"
                    )
                return
            appended = tx.end_half(half, None, self._now_ms())
        self._store.finish(appended)

    def halves(self) -> list[OpenHalf]:
        """Those still open, as a rule the oldest first."""
        with self._store.read():
            return list(self._store.open_transactions.values())

    def read(self, half: OpenHalf) -> OpenTransaction | None:
        """What is asked about an open half; None if it has ended meanwhile, or its bytes are damaged."""
        with self._store.read():
            topic = self._store.topics.by_id(half.topic_id)
            now = self._store.open_transactions.get(half_key(half.topic_id, half.message_id))
            if topic is None or now is None:
                return None
            message = self._store.readable(now.place)
        if message is None:
            return None
        properties = {k: v for k, v in message.properties.items() if k != HALF_DELAY_PROPERTY}
        return OpenTransaction(topic.name, replace(message, properties=properties))

    def _half(self, draft: Draft, topic: Topic, now_ms: int) -> StoredMessage:
        properties = draft.kept_properties
        later_ms = drawn_ms(draft.id or "", draft.jitter_ms) if draft.jitter_ms else 0
        if draft.delay_ms is not None:
            properties[HALF_DELAY_PROPERTY] = str(draft.delay_ms + later_ms)
        return StoredMessage(
            id=draft.id or "",
            topic_id=topic.id,
            queue_id=self._topics.choose_queue(topic, draft.message_group),
            type=MessageType.TRANSACTION,
            level=min(draft.level, LEVEL_ASKED_MAX),
            flags=0,
            tag=draft.tag,
            keys=draft.keys,
            message_group=draft.message_group,
            born_at_ms=draft.born_at_ms if draft.born_at_ms is not None else now_ms,
            stored_at_ms=now_ms,
            deliver_at_ms=NO_TIME_MS
            if draft.deliver_at_ms is None
            else max(draft.deliver_at_ms, 0) + later_ms,
            properties=properties,
            body=bytes(draft.body),
        )

    def _committed(self, half: StoredMessage, now_ms: int) -> tuple[StoredMessage, str]:
        """The message that the commit stores, and a note where it is on another level than was asked for."""
        properties = dict(half.properties)
        delay = properties.pop(HALF_DELAY_PROPERTY, None)
        due_ms: int | None = None
        level, note = 0, ""
        if half.level:
            due_ms, level, note = level_due_ms(half.level, self._settings, now_ms)
        elif delay is not None:
            due_ms = max(now_ms + int(delay), 0)
        elif half.deliver_at_ms != NO_TIME_MS:
            due_ms = half.deliver_at_ms
        message = replace(
            half,
            level=level,
            stored_at_ms=now_ms,
            deliver_at_ms=NO_TIME_MS if due_ms is None else due_ms,
            properties=properties,
        )
        return message, note

    def _committed_before(self, topic: Topic, message_id: str) -> SendResult:
        """The answer to a commit that comes again."""
        for seq in self._store.seqs_with_id(topic.id, message_id):
            handle = Handle(self._broker_id, topic.name, message_id, seq)
            due_ms = int(self._store.entry(seq)["deliver_at_ms"])
            return SendResult(message_id, topic.name, handle, due_ms, is_repeat=True)
        for place in self._store.places_with_id(topic.id, message_id):
            return replace(self._placed(topic, message_id, place), is_repeat=True)
        raise UnknownTransactionError(
            f"no open transaction with message {message_id!r} in topic {topic.name!r}: it was never begun, "
            "or it was rolled back"
        )

    def _is_stored(self, topic: Topic, message_id: str) -> bool:
        store = self._store
        return bool(store.seqs_with_id(topic.id, message_id) or store.places_with_id(topic.id, message_id))

    def _placed(self, topic: Topic, message_id: str, place: int) -> SendResult:
        """The result of a message that went into its queue at once."""
        message = self._store.readable(place)
        if message is None:
            return SendResult(message_id, topic.name, None, None)
        queue, offset = message.queue_id, self._store.queue_offset(place)
        return SendResult(message_id, topic.name, None, None, queue=queue, offset=offset)


def _told_apart(draft: Draft, first: StoredMessage | None) -> Draft:
    """The draft; under another id if a library made its id and `first`, which has it, says something else."""
    if first is None or not draft.has_made_id or (content := content_of(draft)) == content_of(first):
        return draft
    return replace(draft, id=id_of_other(draft.id or "", content))
