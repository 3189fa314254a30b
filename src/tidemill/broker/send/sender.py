"""Sending: drafts in, results out, one frame for the whole batch (or a few, if it is very large).

Owns the way from a draft to a stored message: admission, topic and queue, de-duplication by (topic, client-
given id) within an hour, once and replace by key, the near flag. The same id with another content is refused,
or, where a library made it, another message (`content.py`, `id_collisions.py`). Check and append happen under
the writer lock, so two equal sends at the same moment still make one message. A result leaves only after its
frame (or the frame of the message it repeats) is safe.

Invariant: a send that meets a full disk leaves nothing behind, however many frames it would have been: space
for all of them is set aside before the first is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tidemill.broker.change.topic_admin import TopicAdmin
from tidemill.broker.send.admission import check_draft, check_type, due_time_ms, message_type
from tidemill.broker.send.clamped_levels import ClampedLevels
from tidemill.broker.send.content import require_same
from tidemill.broker.send.deduplication import stored_about_ms
from tidemill.broker.send.draft_sizes import body_bytes, bytes_at_most
from tidemill.broker.send.id_collisions import told_apart
from tidemill.broker.send.jitter import drawn_ms
from tidemill.broker.send.planned_send import Answer, PlannedSend
from tidemill.broker.send.tick_limit import TickLimit
from tidemill.core.arguments import require_kind
from tidemill.core.byte_budget import ByteBudget
from tidemill.core.config import BrokerSettings
from tidemill.core.errors import BusyError, RequestError
from tidemill.core.limits import DEDUPLICATION_MS, LEVEL_WAITING_MAX, NEAR_COUNT_MAX
from tidemill.core.model import NO_SEQ, NO_TIME_MS, Draft, Handle, MessageType, Once, SendResult
from tidemill.core.model import StoredMessage as Stored
from tidemill.log.arrays import I64, U8
from tidemill.release.releaser import Releaser
from tidemill.store.find.hashing import PURPOSE_ID, PURPOSE_KEY, hash_texts, seed_of
from tidemill.store.formats.entry_format import FLAG_FIFO, FLAG_LEVEL, FLAG_NEAR
from tidemill.store.formats.framing import framed
from tidemill.store.message_store import MessageStore
from tidemill.store.topics import Topic
from tidemill.store.upkeep.moving import move_bounds, move_payloads, reschedule

_TOPIC_FRAME_BYTES = 512


class Sender:
    """The send verb. Thread-safe."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicAdmin,
        releaser: Releaser,
        settings: BrokerSettings,
        broker_id: str,
        now_ms: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._topics = topics
        self._releaser = releaser
        self._settings = settings
        self._broker_id = broker_id
        self._now_ms = now_ms
        self._wake = wake
        self.in_flight = ByteBudget(settings.in_flight_bytes_max)
        self.tick_limit = TickLimit(store, settings)
        self.clamped_levels = ClampedLevels()

    @property
    def in_flight_bytes(self) -> int:
        """Bodies of sends that are not answered yet."""
        return self.in_flight.held

    def send(self, drafts: Sequence[Draft], *, creates_topics: bool = True) -> list[SendResult]:
        """Store all drafts or, if one of them is wrong, none."""
        results: list[SendResult] = []
        for answer in self.send_each(drafts, creates_topics=creates_topics, is_all_or_none=True):
            if not isinstance(answer, SendResult):
                raise answer
            results.append(answer)
        return results

    def send_each(
        self, drafts: Sequence[Draft], *, creates_topics: bool = True, is_all_or_none: bool = False
    ) -> list[Answer]:
        """Store the drafts that are right; each gets its own answer."""
        require_kind("drafts", drafts, (list, tuple), "a list of Draft")
        with self.in_flight.hold(body_bytes(drafts)):
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
                self._require_room_for_topics(batch, drafts)
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
        first_seq = store.indexes.ledger.next_seq
        offsets: Sequence[int] = ()
        if batch.messages:
            offsets = store.writer.put(batch.messages, now_ms, more_bytes=payloads).queue_offsets
        elif payloads:
            store.writer.reserve(payloads, len(seqs))
        due, near_below_ms = np.array(list(batch.moves.values())), now_ms + self._settings.lead_ms
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
            topic = self._store.indexes.topics.named(draft.topic)
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
        found_at, _ = self._store.indexes.find.find_many(hash_texts(texts, np.array(seeds, np.uint64)))
        return {asked[at] for at in found_at.tolist()}

    def _check(self, batch: PlannedSend, index: int, draft: Draft, now_ms: int, creates_topics: bool) -> None:
        check_draft(draft, self._settings)
        due_ms, level, note = due_time_ms(draft, self._settings, now_ms)
        kind = message_type(draft, due_ms is not None)
        batch.admitted[index] = (due_ms, level, note, kind)
        topic = self._store.indexes.topics.named(draft.topic)
        if topic is not None:
            check_type(kind, topic.name, topic.type)
        elif not creates_topics:
            self._topics.require(draft.topic)

    def _require_room_for_topics(self, batch: PlannedSend, drafts: Sequence[Draft]) -> None:
        """A send that will be refused makes no topic: check that there is space before one is made."""
        named = self._store.indexes.topics.named
        wanted = [draft for draft, answer in zip(drafts, batch.answers, strict=True) if answer is None]
        new_topics = {draft.topic for draft in wanted if named(draft.topic) is None}
        if new_topics:
            frames = [_TOPIC_FRAME_BYTES] * len(new_topics) + [bytes_at_most(part) for part in framed(wanted)]
            self._store.writer.reserve(frames, len(wanted))

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
        if self.tick_limit.is_on and due_ms is not None:
            self.tick_limit.take(topic, due_ms, batch.planned)
        if draft.id is not None:
            batch.fresh_ids[topic.id, message_id] = len(batch.messages)
        if draft.keys and due_ms is not None:
            batch.fresh_keys.update(((topic.id, key), len(batch.messages)) for key in draft.keys)
        batch.slots.append(index)
        batch.notes.append(note)
        batch.messages.append(
            Stored(
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
        return LEVEL_WAITING_MAX - self._store.indexes.levels.waiting

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
        """The result of the stored message that this draft repeats (and perhaps moves), if it does."""
        if draft.id is not None:
            # As in a table: sent once, an id counts for as long as its message is kept.
            counts_for_ever = draft.once is not Once.NO and not draft.has_made_id
            found = self._found_before(topic, draft.id, None if counts_for_ever else now_ms)
            if found is not None:
                if found[0] is not None:
                    require_same(draft, found[0], topic.name)
                return self._result_of_found(topic, draft.id, *found)
        if draft.once is Once.NO or due_ms is None or not draft.keys:
            return None
        return self._once(batch, topic, draft, due_ms)

    def _first_with_id(
        self, batch: PlannedSend, topic: Topic, message_id: str, index: int, now_ms: int
    ) -> Stored | None:
        """The message of this batch, or stored within the hour, that has this id."""
        fresh = batch.fresh_ids.get((topic.id, message_id))
        if fresh is not None:
            return batch.messages[fresh]
        return self.message_before(topic, message_id, now_ms)[1] if index in batch.suspects else None

    def message_before(self, topic: Topic, message_id: str, now_ms: int) -> tuple[bool, Stored | None]:
        """Whether a message was stored with this id within the hour, and which, unless it is damaged."""
        found = self._found_before(topic, message_id, now_ms)
        return (False, None) if found is None else (True, found[0])

    def _result_of_found(
        self, topic: Topic, message_id: str, message: Stored | None, seq: int, place: int
    ) -> SendResult:
        if seq != NO_SEQ:
            due_ms = int(self._store.entry(seq)["deliver_at_ms"])
            return self._result(topic, message_id, seq, due_ms, is_repeat=True)
        if message is None:
            return SendResult(message_id, topic.name, None, None, True)
        queue, offset = message.queue_id, self._store.queue_offset(place)
        return SendResult(message_id, topic.name, None, None, True, queue=queue, offset=offset)

    def _found_before(
        self, topic: Topic, message_id: str, now_ms: int | None
    ) -> tuple[Stored | None, int, int] | None:
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
            stored_at_ms = stored_about_ms(self._store, seq, place, now_ms or 0)
            if now_ms is None or now_ms - stored_at_ms < DEDUPLICATION_MS:
                return self._store.readable(place), seq, place
        return None

    def _once(self, batch: PlannedSend, topic: Topic, draft: Draft, due_ms: int) -> SendResult | None:
        # One whose bytes are damaged does not count: it will not be delivered.
        pending = self._store.seqs_with_key(topic.id, draft.keys[0], with_damaged=False)
        if not pending:
            return None
        if draft.once is Once.REPLACE:
            batch.moves[pending[0]] = due_ms
        message = self._store.message(int(self._store.entry(pending[0])["place"]))
        return self._result(topic, message.id, pending[0], message.deliver_at_ms, is_repeat=True)

    # -- answering, after the frame is safe -------------------------------------------------------

    def _hand_over_held(self, messages: Sequence[Stored], first_seq: int) -> None:
        if not any(m.flags & (FLAG_NEAR | FLAG_LEVEL) for m in messages):
            return
        timed = [m for m in messages if m.deliver_at_ms != NO_TIME_MS]
        due = np.array([m.deliver_at_ms for m in timed], np.int64)
        self.hand_over(due, first_seq, np.array([m.flags for m in timed], np.int64))

    def hand_over(self, deliver_at_ms: I64, first_seq: int, flags: I64 | U8) -> None:
        """Give the near ones of newly stored messages to the releaser, and wake it if one comes first.

        Those on a level are in their queues already.
        """
        if not len(flags):
            return
        near = (flags & FLAG_NEAR).nonzero()[0]
        if len(near):
            self._releaser.add_near(deliver_at_ms[near], first_seq + near)
        held = (flags & (FLAG_NEAR | FLAG_LEVEL)).nonzero()[0]
        if len(held):
            next_wake_ms = self._releaser.next_wake_ms
            if next_wake_ms is None or int(deliver_at_ms[held].min()) < next_wake_ms:
                self._wake()

    def _fill(self, batch: PlannedSend, first_seq: int, offsets: Sequence[int]) -> None:
        seq = first_seq
        topic_id, name = 0, ""
        for message, slot, note, offset in zip(
            batch.messages, batch.slots, batch.notes, offsets, strict=True
        ):
            if message.topic_id != topic_id:
                topic_id = message.topic_id
                topic = self._store.indexes.topics.by_id(topic_id)
                name = topic.name if topic is not None else ""
            if note:
                self.clamped_levels.add(name, note)
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

    def _result(self, topic: Topic, message_id: str, seq: int, due_ms: int, *, is_repeat: bool) -> SendResult:
        handle = Handle(self._broker_id, topic.name, message_id, seq)
        return SendResult(message_id, topic.name, handle, due_ms, is_repeat=is_repeat)
