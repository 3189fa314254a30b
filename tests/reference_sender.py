"""The reference for the send path: one draft after another, with every rule written out where it applies.

The broker plans a send as columns (`broker/send`); this is the same send message by message, slow and easy
to follow. Tests send the same drafts to both and compare answers, log and queues. It stands on the checks of
`broker/send/admission.py` and on the store, and shares nothing else with what it is compared with.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tidemill.broker.broker import Broker
from tidemill.broker.send.admission import check_draft, check_type, due_time_ms
from tidemill.broker.send.content import content_of
from tidemill.broker.send.jitter import drawn_ms
from tidemill.core.arguments import require_kind
from tidemill.core.errors import BusyError, IdInUseError, RequestError, TooManyRequestsError
from tidemill.core.limits import DEDUPLICATION_MS, ID_CHARS_MAX, LEVEL_WAITING_MAX, NEAR_COUNT_MAX
from tidemill.core.model import (
    NO_OFFSET,
    NO_SEQ,
    NO_TIME_MS,
    Draft,
    Handle,
    MessageType,
    Once,
    SendResult,
    StoredMessage,
)
from tidemill.log.arrays import I64, U8
from tidemill.store.find.hashing import PURPOSE_ID, PURPOSE_KEY, hash_texts, seed_of
from tidemill.store.formats.entry_format import FLAG_FIFO, FLAG_LEVEL, FLAG_NEAR
from tidemill.store.formats.framing import frame_bounds
from tidemill.store.formats.new_messages import new_messages
from tidemill.store.topics import Topic
from tidemill.store.upkeep.moving import MovedMessages, move_bounds, move_payloads, reschedule

_DIGEST_BYTES = 8

Answer = SendResult | RequestError | BusyError
# When a draft falls due (None: it is not timed), its level, a note for the receipt, and what it is.
Admitted = tuple[int | None, int, str, MessageType]
Planned = Counter[tuple[int, int]]  # by topic id and tick: what one call is about to store


@dataclass(slots=True)
class PlannedSend:
    """What one send will append, and what it answers meanwhile."""

    answers: list[Answer | None]
    admitted: list[Admitted | None]  # what the check found out about each draft
    suspects: set[int] = field(default_factory=set)  # drafts whose id or once-key was perhaps stored before
    messages: list[StoredMessage] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)  # which answer each message fills
    notes: list[str] = field(default_factory=list)
    fresh_ids: dict[tuple[int, str], int] = field(default_factory=dict)  # ids of this batch -> message
    fresh_keys: dict[tuple[int, str], int] = field(default_factory=dict)  # keys of timed ones -> message
    repeats: list[tuple[int, int]] = field(default_factory=list)  # answers that repeat a message of the batch
    planned: Planned = field(default_factory=Counter)
    moves: dict[int, int] = field(default_factory=dict)  # seqs whose time is replaced -> new time
    moved: list[MovedMessages] = field(default_factory=list)  # the same, after it was done

    def fill_moved(self) -> None:
        """Let the receipts of messages whose time was replaced say where those are now."""
        now_at: dict[int, tuple[int, int]] = {}
        for part in self.moved:
            new_seqs = range(part.appended.first_seq, part.appended.first_seq + len(part.old_seqs))
            pairs = zip(new_seqs, part.deliver_at_ms.tolist(), strict=True)
            now_at.update(zip(part.old_seqs.tolist(), pairs, strict=True))
        for index, answer in enumerate(self.answers):
            if isinstance(answer, SendResult) and answer.handle is not None and answer.handle.seq in now_at:
                seq, due_ms = now_at[answer.handle.seq]
                handle = replace(answer.handle, seq=seq)
                self.answers[index] = replace(answer, handle=handle, deliver_at_ms=due_ms)


class ReferenceSender:
    """The send verb of a broker, message by message."""

    def __init__(self, broker: Broker) -> None:
        self._store = broker.store
        self._topics = broker.topics
        self._releaser = broker.releaser
        self._settings = broker.settings
        self._broker_id = broker.id
        self._now_ms = broker.clock.now_ms

    def send(self, drafts: Sequence[Draft], *, creates_topics: bool = True) -> list[SendResult]:
        """Store all drafts or, if one of them is wrong, none."""
        receipts: list[SendResult] = []
        for answer in self.send_each(drafts, creates_topics=creates_topics, is_all_or_none=True):
            if not isinstance(answer, SendResult):
                raise answer
            receipts.append(answer)
        return receipts

    def send_each(
        self, drafts: Sequence[Draft], *, creates_topics: bool = True, is_all_or_none: bool = False
    ) -> list[Answer]:
        """Store the drafts that are right; each gets its own answer."""
        require_kind("drafts", drafts, (list, tuple), "a list of Draft")
        now_ms = self._now_ms()
        with self._store.writer.lock:
            batch = PlannedSend([None] * len(drafts), [None] * len(drafts))
            # All are checked before the first of them makes its topic or moves another message.
            self._each(
                batch,
                drafts,
                is_all_or_none,
                lambda i, d: self._check(batch, i, d, now_ms, creates_topics),
            )
            batch.suspects = self._suspects(batch, drafts)
            self._each(batch, drafts, is_all_or_none, lambda i, d: self._plan(batch, i, d, now_ms))
            first_seq, offsets = self._append(batch, now_ms)
        self._store.finish_written()
        self._hand_over_held(batch.messages, first_seq)
        for part in batch.moved:
            self.hand_over(part.deliver_at_ms, part.appended.first_seq, part.flags)
        self._fill(batch, first_seq, offsets)
        return [answer for answer in batch.answers if answer is not None]

    @staticmethod
    def _each(
        batch: PlannedSend, drafts: Sequence[Draft], is_all_or_none: bool, act: Callable[[int, Draft], None]
    ) -> None:
        """Act on every draft that has no answer yet; one that is refused gets its error as the answer."""
        for index, draft in enumerate(drafts):
            if batch.answers[index] is None:
                try:
                    act(index, draft)
                except (RequestError, BusyError) as error:
                    if is_all_or_none:
                        raise
                    batch.answers[index] = error

    def _append(self, batch: PlannedSend, now_ms: int) -> tuple[int, Sequence[int]]:
        """Write what was planned, all or, on a full disk, nothing; returns the first seq it made, and the
        messages' offsets in their queues."""
        store = self._store
        seqs = np.array(list(batch.moves), np.int64)
        bounds = move_bounds(store, seqs)
        payloads = move_payloads(store, seqs, bounds)
        first_seq = store.ledger.next_seq
        offsets: Sequence[int] = ()
        if batch.messages:
            new = new_messages(batch.messages)
            new = replace(new, bounds=list(frame_bounds(len(m.body) for m in batch.messages)))
            offsets = store.writer.append(new, now_ms, more_bytes=payloads).queue_offsets
            offsets = offsets or [NO_OFFSET] * new.count
        elif payloads:
            store.writer.reserve(payloads, len(seqs))
        due, near_below_ms = np.array(list(batch.moves.values())), now_ms + self._settings.lead_ms
        if self.near_room() <= 0:  # since decision 43
            near_below_ms = NO_TIME_MS
        batch.moved = list(reschedule(store, seqs, due, bounds, near_below_ms, now_ms))
        return first_seq, offsets

    # -- planning, under the writer lock ----------------------------------------------------------

    def _suspects(self, batch: PlannedSend, drafts: Sequence[Draft]) -> set[int]:
        """Drafts that the find index has candidates for, looked up all at once; most batches have none."""
        texts: list[bytes] = []
        seeds: list[int] = []
        asked: list[int] = []
        for index, draft in enumerate(drafts):
            if batch.answers[index] is not None:
                continue
            topic = self._store.topics.named(draft.topic)
            if topic is None:
                continue
            if draft.id is not None:
                texts.append(draft.id.encode())
                seeds.append(seed_of(topic.id, PURPOSE_ID))
                asked.append(index)
            if draft.once is not Once.NO and draft.keys:
                texts.append(draft.keys[0].encode())
                seeds.append(seed_of(topic.id, PURPOSE_KEY))
                asked.append(index)
        if not asked:
            return set()
        found_at, _ = self._store.find.find_many(hash_texts(texts, np.array(seeds, np.uint64)))
        return {asked[at] for at in found_at.tolist()}

    def _check(self, batch: PlannedSend, index: int, draft: Draft, now_ms: int, creates_topics: bool) -> None:
        check_draft(draft, self._settings)
        due_ms, level, note = due_time_ms(draft, self._settings, now_ms)
        kind = message_type(draft, due_ms is not None)
        batch.admitted[index] = (due_ms, level, note, kind)
        topic = self._store.topics.named(draft.topic)
        if topic is not None:
            check_type(kind, topic.name, topic.type)
        elif not creates_topics:
            self._topics.require(draft.topic)

    def _plan(self, batch: PlannedSend, index: int, draft: Draft, now_ms: int) -> None:
        admitted = batch.admitted[index]
        assert admitted is not None
        due_ms, level, note, kind = admitted
        topic = self._topics.find_or_create(draft.topic)
        if draft.has_made_id:
            draft = told_apart(draft, self._first_with_id(batch, topic, draft.id or "", index, now_ms))
        message_id = draft.id or f"{self._broker_id}{(self._store.log.written_end << 16) + index:016X}"
        if draft.jitter_ms and due_ms is not None:
            due_ms += drawn_ms(message_id, draft.jitter_ms)
        fresh = self._repeats_fresh(batch, topic, draft, due_ms, now_ms)
        if fresh is not None:
            batch.repeats.append((index, fresh))
            return
        repeat = self._repeat(batch, topic, draft, due_ms, now_ms) if index in batch.suspects else None
        if repeat is not None:
            batch.answers[index] = repeat
            return
        if due_ms is not None:
            self._take_tick(batch, topic, due_ms)
        if draft.id is not None:
            batch.fresh_ids[topic.id, message_id] = len(batch.messages)
        if draft.keys and due_ms is not None:
            batch.fresh_keys.update(((topic.id, key), len(batch.messages)) for key in draft.keys)
        batch.slots.append(index)
        batch.notes.append(note)
        batch.messages.append(
            StoredMessage(
                id=message_id,
                topic_id=topic.id,
                queue_id=self._topics.choose_queue(topic, draft.message_group),
                type=kind,
                level=level,
                flags=self.flags(kind, due_ms, now_ms, level),
                tag=draft.tag,
                keys=draft.keys,
                message_group=draft.message_group,
                born_at_ms=draft.born_at_ms if draft.born_at_ms is not None else now_ms,
                stored_at_ms=now_ms,
                deliver_at_ms=NO_TIME_MS if due_ms is None else due_ms,
                properties=draft.kept_properties,
                body=bytes(draft.body),
            )
        )

    def near_room(self) -> int:
        """How many more messages the near set may take."""
        return NEAR_COUNT_MAX - self._releaser.near_count

    def level_room(self) -> int:
        """How many more messages the level queues may take."""
        return LEVEL_WAITING_MAX - self._store.levels.waiting

    def flags(self, kind: MessageType, due_ms: int | None, now_ms: int, level: int = 0) -> int:
        """Level if on one, else near if due within the lead; ordered if it belongs to a message group."""
        if due_ms is None:
            return 0
        fifo = FLAG_FIFO if kind is MessageType.FIFO else 0
        if level and self.level_room() > 0:
            return FLAG_LEVEL | fifo
        is_near = due_ms < now_ms + self._settings.lead_ms and self.near_room() > 0
        return (FLAG_NEAR if is_near else 0) | fifo

    def _repeats_fresh(
        self, batch: PlannedSend, topic: Topic, draft: Draft, due_ms: int | None, now_ms: int
    ) -> int | None:
        """Index of the message of this batch that this draft repeats (and perhaps moves), if it does."""
        if draft.id is not None and (topic.id, draft.id) in batch.fresh_ids:
            first = batch.fresh_ids[topic.id, draft.id]
            require_same(draft, batch.messages[first], topic.name)
            return first
        if draft.once is Once.NO or due_ms is None or not draft.keys:
            return None
        index = batch.fresh_keys.get((topic.id, draft.keys[0]))
        if index is not None and draft.once is Once.REPLACE:
            message = batch.messages[index]
            flags = self.flags(message.type, due_ms, now_ms)
            batch.messages[index] = replace(message, deliver_at_ms=due_ms, flags=flags, level=0)
        return index

    def _repeat(
        self, batch: PlannedSend, topic: Topic, draft: Draft, due_ms: int | None, now_ms: int
    ) -> SendResult | None:
        """The receipt of the stored message that this draft repeats (and perhaps moves), if it does."""
        if draft.id is not None:
            # As in a table: sent once, an id counts for as long as its message is kept.
            counts_for_ever = draft.once is not Once.NO and not draft.has_made_id
            found = self._found_before(topic, draft.id, None if counts_for_ever else now_ms)
            if found is not None:
                if found[0] is not None:
                    require_same(draft, found[0], topic.name)
                return self._receipt_of_found(topic, draft.id, *found)
        if draft.once is Once.NO or due_ms is None or not draft.keys:
            return None
        return self._once(batch, topic, draft, due_ms)

    def _first_with_id(
        self, batch: PlannedSend, topic: Topic, message_id: str, index: int, now_ms: int
    ) -> StoredMessage | None:
        """The message of this batch, or stored within the hour, that has this id."""
        fresh = batch.fresh_ids.get((topic.id, message_id))
        if fresh is not None:
            return batch.messages[fresh]
        found = self._found_before(topic, message_id, now_ms) if index in batch.suspects else None
        return None if found is None else found[0]

    def _receipt_of_found(
        self, topic: Topic, message_id: str, message: StoredMessage | None, seq: int, place: int
    ) -> SendResult:
        if seq != NO_SEQ:
            due_ms = int(self._store.entry(seq)["deliver_at_ms"])
            return self._receipt(topic, message_id, seq, due_ms, is_repeat=True)
        if message is None:
            return SendResult(message_id, topic.name, None, None, True)
        queue, offset = message.queue_id, self._store.queue_offset(place)
        return SendResult(message_id, topic.name, None, None, True, queue=queue, offset=offset)

    def _found_before(
        self, topic: Topic, message_id: str, now_ms: int | None
    ) -> tuple[StoredMessage | None, int, int] | None:
        """The message stored with this id, within the hour or ever if None (None: damaged); its seq; its
        place."""
        timed = [
            (seq, int(self._store.entry(seq)["place"]))
            for seq in self._store.seqs_with_id(topic.id, message_id)
        ]
        for seq, place in [
            *timed,
            *((NO_SEQ, at) for at in self._store.places_with_id(topic.id, message_id)),
        ]:
            stored_at_ms = self._stored_at_ms(seq, place, now_ms or 0)
            if now_ms is None or now_ms - stored_at_ms < DEDUPLICATION_MS:
                return self._store.readable(place), seq, place
        return None

    def _stored_at_ms(self, seq: int, place: int, now_ms: int) -> int:
        """When a message was stored; for one that is damaged and not timed, at the latest."""
        if seq != NO_SEQ:
            return int(self._store.entry(seq)["stored_at_ms"])
        stored_by_ms = self._store.stored_by_ms(place)
        return now_ms if stored_by_ms == NO_TIME_MS else stored_by_ms

    def _take_tick(self, batch: PlannedSend, topic: Topic, due_ms: int) -> None:
        """Count one more message of a tick, or `TooManyRequestsError`; only where there is a limit."""
        limit, counts = self._settings.due_per_tick_max, self._store.due_counts.ticks
        if not limit or counts is None:
            return
        tick_ms, key = counts.tick_ms, (topic.id, due_ms // counts.tick_ms)
        if counts.count(topic.id, due_ms) + batch.planned[key] >= limit:
            raise TooManyRequestsError(
                f"too many messages of topic {topic.name!r} fall due in the {tick_ms} ms from "
                f"{due_ms // tick_ms * tick_ms} on (limit {limit} a tick); "
                "retry later or choose another time"
            )
        batch.planned[key] += 1

    def _once(self, batch: PlannedSend, topic: Topic, draft: Draft, due_ms: int) -> SendResult | None:
        # One whose bytes are damaged does not count: it will not be delivered.
        pending = self._store.seqs_with_key(topic.id, draft.keys[0], with_damaged=False)
        if not pending:
            return None
        if draft.once is Once.REPLACE:
            batch.moves[pending[0]] = due_ms
        message = self._store.message(int(self._store.entry(pending[0])["place"]))
        return self._receipt(topic, message.id, pending[0], message.deliver_at_ms, is_repeat=True)

    # -- answering, after the frame is safe -------------------------------------------------------

    def _hand_over_held(self, messages: Sequence[StoredMessage], first_seq: int) -> None:
        if not any(m.flags & (FLAG_NEAR | FLAG_LEVEL) for m in messages):
            return
        timed = [m for m in messages if m.deliver_at_ms != NO_TIME_MS]
        due = np.array([m.deliver_at_ms for m in timed], np.int64)
        self.hand_over(due, first_seq, np.array([m.flags for m in timed], np.int64))

    def hand_over(self, deliver_at_ms: I64, first_seq: int, flags: I64 | U8) -> None:
        """Give the near ones of newly stored messages to the releaser."""
        if not len(flags):
            return
        near = (flags & FLAG_NEAR).nonzero()[0]
        if len(near):
            self._releaser.add_near(deliver_at_ms[near], first_seq + near)

    def _fill(self, batch: PlannedSend, first_seq: int, offsets: Sequence[int]) -> None:
        seq = first_seq
        topic_id, name = 0, ""
        for message, slot, note, offset in zip(
            batch.messages, batch.slots, batch.notes, offsets, strict=True
        ):
            if message.topic_id != topic_id:
                topic_id = message.topic_id
                topic = self._store.topics.by_id(topic_id)
                name = topic.name if topic is not None else ""
            if message.deliver_at_ms == NO_TIME_MS:
                batch.answers[slot] = SendResult(
                    message.id, name, None, None, note=note, queue=message.queue_id, offset=offset
                )
                continue
            handle = Handle(self._broker_id, name, message.id, seq)
            batch.answers[slot] = SendResult(message.id, name, handle, message.deliver_at_ms, note=note)
            seq += 1
        for slot, index in batch.repeats:
            first = batch.answers[batch.slots[index]]
            assert isinstance(first, SendResult)
            batch.answers[slot] = replace(first, is_repeat=True, note="")
        if batch.moved:
            batch.fill_moved()

    def _receipt(
        self, topic: Topic, message_id: str, seq: int, due_ms: int, *, is_repeat: bool
    ) -> SendResult:
        handle = Handle(self._broker_id, topic.name, message_id, seq)
        return SendResult(message_id, topic.name, handle, due_ms, is_repeat=is_repeat)


def message_type(draft: Draft, is_timed: bool) -> MessageType:
    """What a message is, for its topic."""
    if draft.message_group:
        return MessageType.FIFO
    return MessageType.DELAY if is_timed else MessageType.NORMAL


def told_apart(draft: Draft, first: StoredMessage | None) -> Draft:
    """The draft; under an id of its own if `first`, which has the same id, is another message."""
    if first is None or not draft.has_made_id or (content := content_of(draft)) == content_of(first):
        return draft
    keys = (key.encode() for key in draft.keys)
    parts = (content["tag"], *keys, content["message_group"], content["properties"], content["body"])
    digest = hashlib.blake2b(b"\0".join(parts), digest_size=_DIGEST_BYTES).hexdigest()
    return replace(draft, id=f"{(draft.id or '')[: ID_CHARS_MAX - len(digest) - 1]}-{digest}")


_WORDS = {
    "keys": "other keys",
    "body": "another body",
    "tag": "another tag",
    "message_group": "another message group",
    "properties": "other properties",
}


def require_same(draft: Draft, first: StoredMessage, topic_name: str) -> None:
    """`IdInUseError` unless a draft says what the message says that has its id."""
    given, known = content_of(draft), content_of(first)
    compared = ["keys"] if draft.once is not Once.NO and draft.keys else list(_WORDS)
    for name in compared:
        if given[name] != known[name]:
            raise IdInUseError(
                f"id {first.id!r} in topic {topic_name!r} belongs to another message, with {_WORDS[name]}; "
                "use a unique id"
            )
