"""One message, whole: its content, what became of it, and how it came there. Also: all that have a key.

Owns the history of a timed message, and the summary of each that is found by a key. They are put
together from what the store has anyway: the entries and states of every seq the message has had, the frames
that made them, its row in the queue, and the consumer groups' progress there. Nothing is kept for their sake,
so what retention has cut is missing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from tidemill.broker.change.topic_admin import TopicAdmin
from tidemill.broker.query.damage_views import message_of_entry, message_of_row
from tidemill.core.model import NO_SEQ, NO_TIME_MS, Handle, StoredMessage, Via, rolls_of
from tidemill.log.arrays import Rows
from tidemill.store.consumers.consumer_state import Progress
from tidemill.store.damaged_messages import row_of_place
from tidemill.store.find.find_runs import PLACE_BIT
from tidemill.store.find.hashing import id_hash
from tidemill.store.formats.entry_format import FLAG_MOVED
from tidemill.store.formats.frames import Cancel, Kind, ReEnter, ReEnterReason
from tidemill.store.formats.queue_format import QUEUE_ROW
from tidemill.store.ledger import State
from tidemill.store.message_reads import KeyedMessage
from tidemill.store.message_store import MessageStore
from tidemill.store.topics import Topic

_SEQS_MAX = 100  # of a message that is pushed on and on, the last moves
# When a message was cancelled stands only in the frame that did it, somewhere behind the message. It is
# looked for among this many frames, a few at a time, because the log's writer waits meanwhile.
_FRAMES_LOOKED_AT = 100_000
_FRAMES_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """Something that happened: stored, rescheduled, kept, released, cancelled. `at_ms` None: not known."""

    what: str
    at_ms: int | None
    deliver_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """How far a consumer group is with the message: waiting, taken, settled."""

    group: str
    standing: str
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message, timed or not, and what became of it; where it is in its queue, if that is known."""

    message: StoredMessage
    state: str = "released"  # pending, released, cancelled
    queue_id: int | None = None
    offset: int | None = None
    released_at_ms: int | None = None
    via: Via | None = None
    rolls: int | None = None
    is_damaged: bool = False  # the bytes are: of the message only what the index knows

    def in_queue(self: Found, queue_id: int, offset: int, row: Rows) -> Found:
        """The same with its place in a queue, whose row it is."""
        return replace(
            self,
            queue_id=queue_id,
            offset=offset,
            released_at_ms=int(row["released_at_ms"]),
            via=Via(int(row["via"])),
            rolls=rolls_of(int(row["placements"])),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStory(MessageView):
    """A timed message and how it came to be as it is."""

    topic: str
    handle: Handle
    size: int
    history: list[HistoryEvent]
    groups: list[GroupStanding]


Found = TypeVar("Found", bound=MessageView)

_NO_ROW = np.zeros(1, QUEUE_ROW)[0]
_NO_ROW["released_at_ms"] = _NO_ROW["deliver_at_ms"] = NO_TIME_MS


class MessageHistory:
    """Looks a message up. Thread-safe."""

    def __init__(self, store: MessageStore, topics: TopicAdmin, broker_id: str) -> None:
        self._store = store
        self._topics = topics
        self._broker_id = broker_id

    def story(self, topic_name: str, message_id: str, seq: int | None = None) -> MessageStory | None:
        """What is known of a timed message; None if nothing is (any more).

        An id that several messages share means the newest, unless `seq` names one of them.
        """
        topic = self._topics.existing(topic_name)
        with self._store.read():
            seqs = self._seqs(topic.id, message_id) if message_id else self._seq_alone(topic.id, seq)
            if not seqs:
                return None
            mine = self._line_of(seqs, seq)
            last = mine[-1]
            state = self._store.ledger.state(last)
            entry = self._store.entry(last)
            read = self._store.readable(int(entry["place"]))
            message = read or message_of_entry(entry, message_id=message_id)
            history = self._events(mine, message)
        story = MessageStory(
            topic=topic.name,
            message=message,
            handle=Handle(self._broker_id, topic.name, message.id, last),
            state=state.name.lower(),
            size=int(entry["size"]),
            history=history,
            groups=[],
            is_damaged=read is None,
        )
        if state is State.RELEASED:
            return self._with_release(story, topic, last)
        if state is State.CANCELLED:
            history.append(HistoryEvent("cancelled", self._cancelled_at_ms(last, int(entry["place"]) >> 16)))
        return story

    def with_key(self, topic_name: str, key: str, bytes_max: int, count_max: int) -> list[MessageView]:
        """Messages with this key that are still in the log, whatever became of them, newest first.

        Ends with the one whose body takes it over `bytes_max`.
        """
        topic = self._topics.existing(topic_name)
        with self._store.read():
            keyed = self._store.messages_with_key(topic.id, key, bytes_max, count_max)
            noted = [self._noted(one) for one in keyed]
        # The queues are searched outside the writer's lock: a release must not wait for it.
        found = [self._found(topic, one, message, state, offset) for one, message, state, offset in noted]
        return [
            replace(one, message=replace(one.message, keys=(key,))) if one.is_damaged else one
            for one in found
        ]

    def _noted(self, one: KeyedMessage) -> tuple[KeyedMessage, StoredMessage | None, State, int | None]:
        """What became of a message; and its offset, which an untimed one has from the beginning."""
        message = one.message
        if one.seq == NO_SEQ:
            offset = self._store.queue_offset(one.place) if message is not None else None
            return one, message, State.RELEASED, offset
        message = message or message_of_entry(self._store.entry(one.seq))
        return one, message, self._store.ledger.state(one.seq), None

    def _found(
        self, topic: Topic, one: KeyedMessage, message: StoredMessage | None, state: State, offset: int | None
    ) -> MessageView:
        if message is None:
            return self._damaged_in_queue(topic, one.place)
        found = MessageView(message, state.name.lower(), is_damaged=one.message is None)
        if state is not State.RELEASED:
            return found
        if offset is None:
            queue = topic.id, message.queue_id
            row_found = self._store.queues.find_seq(queue, message.deliver_at_ms, one.seq)
        else:
            row_found = self._row_at(topic, message.queue_id, offset, one.place)
        return found if row_found is None else found.in_queue(message.queue_id, *row_found)

    def _damaged_in_queue(self, topic: Topic, place: int) -> MessageView:
        """A message that is not timed and whose bytes are damaged."""
        found = row_of_place(self._store, place)
        if found is None:  # its queue does not show it yet
            return MessageView(message_of_row(topic.id, 0, _NO_ROW), is_damaged=True)
        (_, queue_id), offset, row = found
        message = message_of_row(topic.id, queue_id, row)
        return MessageView(message, is_damaged=True).in_queue(queue_id, offset, row)

    def _row_at(self, topic: Topic, queue_id: int, offset: int, place: int) -> tuple[int, Rows] | None:
        """Offset and queue row of what is not timed; none while its queue does not show it."""
        rows = self._store.queues.read((topic.id, queue_id), offset, offset + 1)
        return (offset, rows[0]) if len(rows) and int(rows[0]["place"]) == place else None

    def _seqs(self, topic_id: int, message_id: str) -> list[int]:
        """The newest seqs of the messages with this id, also of those that moved on, oldest first."""
        ledger = self._store.ledger
        refs = self._store.find.find(id_hash(topic_id, message_id))
        seqs = refs[refs < PLACE_BIT].astype(np.int64)
        known = seqs[(seqs >= ledger.head_seq) & (seqs < ledger.next_seq)]
        newest = np.sort(known)[-_SEQS_MAX:].tolist()
        read = ((seq, self._store.readable(int(self._store.entry(seq)["place"]))) for seq in newest)
        return [seq for seq, message in read if message is None or message.id == message_id]

    def _seq_alone(self, topic_id: int, seq: int | None) -> list[int]:
        """The message that a handle without an id names: one whose bytes are damaged is listed so."""
        ledger = self._store.ledger
        if seq is None or not ledger.knows(seq) or ledger.state(seq) is State.MOVED:
            return []
        return [seq] if int(self._store.entry(seq)["topic_id"]) == topic_id else []

    def _line_of(self, seqs: list[int], seq: int | None) -> list[int]:
        """The seqs of one message, oldest first: those that moved on, up to the one that did not."""
        lines: list[list[int]] = [[]]
        for one in sorted(seqs):
            lines[-1].append(one)
            if self._store.ledger.state(one) is not State.MOVED:
                lines.append([])
        lines = [line for line in lines if line]
        return next((line for line in lines if seq in line), lines[-1])

    def _events(self, seqs: list[int], message: StoredMessage) -> list[HistoryEvent]:
        events = []
        for seq in seqs:
            entry = self._store.entry(seq)
            due_ms = int(entry["deliver_at_ms"])
            frame = self._store.log.intact_frame(int(entry["place"]) >> 16)
            if frame is None:  # how it came there is in the frame, but for what the entry says
                is_kept = bool(entry["flags"] & FLAG_MOVED)
                what = "kept" if is_kept else "stored" if seq == seqs[0] else "rescheduled"
                at_ms = message.stored_at_ms if what == "stored" else None
                events.append(HistoryEvent(what, at_ms, due_ms))
            elif frame.kind != Kind.RE_ENTER:
                events.append(HistoryEvent("stored", message.stored_at_ms, due_ms))
            elif ReEnter.read(frame.payload).reason is ReEnterReason.RESCHEDULE:
                events.append(HistoryEvent("rescheduled", frame.stamp_ms, due_ms))
            else:
                events.append(HistoryEvent("kept", frame.stamp_ms, due_ms))
        if events[0].what != "stored":  # the frame that stored it is past retention
            events.insert(0, HistoryEvent("stored", message.stored_at_ms))
        return events

    def _cancelled_at_ms(self, seq: int, at: int) -> int | None:
        """When the frame was written that cancelled a seq; `at` is where its message is in the log."""
        log = self._store.log
        for _ in range(_FRAMES_LOOKED_AT // _FRAMES_AT_ONCE):
            with self._store.read():
                for _ in range(_FRAMES_AT_ONCE):
                    if not log.head <= at < log.written_end:
                        return None
                    frame = log.intact_frame(at) or log.frame_after(at)
                    if frame is None:
                        return None
                    if frame.kind == Kind.CANCEL and seq in Cancel.read(frame.payload).seqs:
                        return frame.stamp_ms
                    at = frame.end
        return None

    def _with_release(self, story: MessageStory, topic: Topic, seq: int) -> MessageStory:
        queue_id = story.message.queue_id
        found = self._store.queues.find_seq((topic.id, queue_id), story.message.deliver_at_ms, seq)
        if found is None:
            return replace(story, history=[*story.history, HistoryEvent("released", None)])
        offset, row = found
        history = [*story.history, HistoryEvent("released", int(row["released_at_ms"]))]
        story = replace(story, history=history, groups=self._groups(topic, queue_id, offset))
        return story.in_queue(queue_id, offset, row)

    def _groups(self, topic: Topic, queue_id: int, offset: int) -> list[GroupStanding]:
        consumers = self._store.consumers
        with consumers.lock:
            standings = []
            for group in consumers.state.groups():
                progress = consumers.state.progress((group.id, topic.id, queue_id))
                if progress is not None:
                    standings.append(_standing(group.name, progress, offset))
        return standings


def _standing(group: str, progress: Progress, offset: int) -> GroupStanding:
    if offset in progress.taken:
        return GroupStanding(group, "taken", progress.attempts(offset))
    return GroupStanding(group, "settled" if offset < progress.next_offset else "waiting")
