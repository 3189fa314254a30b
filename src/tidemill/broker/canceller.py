"""Cancel and reschedule: by handle, by key, by time range, each with a definite answer.

Owns how a handle finds its message: by seq while that still names it, else by (topic, id), the newest
winning. What is pending is looked at and acted on under the writer lock, in one frame, and the answer
leaves after that frame is safe, so every answer is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.broker.admission import check_delay
from tidemill.broker.sending_verb import SendingVerb
from tidemill.core.arguments import require_int, require_kind
from tidemill.core.durations import require_forward
from tidemill.core.errors import IllegalHandle, RequestError
from tidemill.core.model import SEQ_MAX, CancelAnswer, Handle
from tidemill.log.arrays import I64, U8
from tidemill.store.hashing import PURPOSE_ID, hash_slices, topic_seeds
from tidemill.store.ledger import State
from tidemill.store.message_format import slices_of
from tidemill.store.pending_scan import scan_pending

_NOT_FOUND = -1
_SEQ_MAX = 1 << 63
_UNKNOWN = int(State.MOVED)
# What to answer to a cancel, by the state that the message was found in.
ANSWERS = {
    State.PENDING: CancelAnswer.CANCELLED,
    State.RELEASED: CancelAnswer.RELEASED,
    State.CANCELLED: CancelAnswer.ALREADY_CANCELLED,
    State.MOVED: CancelAnswer.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """The answer to one reschedule: the new handle, or why nothing moved."""

    handle: Handle | None
    deliver_at_ms: int
    answer: CancelAnswer | None = None  # None: it was moved


class Canceller(SendingVerb):
    """The cancel and reschedule verbs. Thread-safe."""

    # -- cancel -----------------------------------------------------------------------------------

    def cancel(self, handles: Sequence[Handle]) -> list[CancelAnswer]:
        """Cancel each message; says of each what became of it."""
        with self._store.writer.lock:
            codes = self._cancel(self._resolve(handles))
        self._store.writer.finish_written()
        return [ANSWERS[State(code)] for code in codes.tolist()]

    def cancel_rows(self, topics: pa.Array, ids: pa.Array, seqs: I64) -> U8:
        """Cancel the message of each row; says of each what became of it, as an index into `ANSWERS`."""
        encoded = topics.dictionary_encode()
        with self._store.writer.lock:
            found = [self._store.indexes.topics.named(name) for name in encoded.dictionary.to_pylist()]
            topic_ids = np.array([topic.id if topic else 0 for topic in found], np.int64)
            which = encoded.indices.to_numpy()
            codes = self._cancel(self._seqs_of(topic_ids[which], ids, seqs.copy()))
        self._store.writer.finish_written()
        return codes

    def _cancel(self, seqs: I64) -> U8:
        """Cancel what is pending of these seqs; the answer of each. Call under the writer lock."""
        codes = np.full(len(seqs), _UNKNOWN, np.uint8)
        found = np.flatnonzero(seqs != _NOT_FOUND)
        codes[found] = self._store.indexes.ledger.states(seqs[found])
        pending = np.flatnonzero(codes == State.PENDING)
        distinct, firsts = np.unique(seqs[pending], return_index=True)
        is_repeated = np.ones(len(pending), np.bool_)
        is_repeated[firsts] = False
        codes[pending[is_repeated]] = State.CANCELLED
        self._store.writer.cancel(distinct, self._now_ms())
        return codes

    def cancel_key(self, topic_name: str, key: str) -> int:
        """Cancel every pending message with this key; says how many."""
        require_kind("key", key, str, "a text")
        with self._store.writer.lock:
            topic = self._topics.require(topic_name)
            seqs = np.array(self._store.seqs_with_key(topic.id, key), np.int64)
            self._store.writer.cancel(seqs, self._now_ms())
        self._store.writer.finish_written()
        return len(seqs)

    def cancel_range(self, topic_name: str, from_ms: int, to_ms: int) -> int:
        """Cancel every pending message due in `[from_ms, to_ms)`; says how many."""
        with self._store.writer.lock:
            seqs = self._pending_in_range(topic_name, from_ms, to_ms)
            self._store.writer.cancel(seqs, self._now_ms())
        self._store.writer.finish_written()
        return len(seqs)

    # -- reschedule -------------------------------------------------------------------------------

    def reschedule(
        self, handles: Sequence[Handle], *, deliver_at_ms: int | None = None, by_ms: int | None = None
    ) -> list[Rescheduled]:
        """Move each pending message to a new time, or by a span; says of each where it is now."""
        with self._store.writer.lock:
            seqs = self._resolve(handles)
            answers = self._answers(seqs)
            movable = np.array([answer is CancelAnswer.CANCELLED for answer in answers], np.bool_)
            distinct = np.unique(seqs[movable])
            moved = self._move(distinct, deliver_at_ms, by_ms)
            results = [Rescheduled(None, -1, answer) for answer in answers]
            for index in np.flatnonzero(movable).tolist():
                new_seq, due_ms = moved[int(seqs[index])]
                handle = handles[index]
                new_handle = Handle(self._broker_id, handle.topic, handle.id, new_seq)
                results[index] = Rescheduled(new_handle, due_ms)
        self._store.writer.finish_written()
        return results

    def reschedule_key(
        self, topic_name: str, key: str, *, deliver_at_ms: int | None = None, by_ms: int | None = None
    ) -> int:
        require_kind("key", key, str, "a text")
        with self._store.writer.lock:
            topic = self._topics.require(topic_name)
            seqs = np.array(self._store.seqs_with_key(topic.id, key), np.int64)
            self._move(seqs, deliver_at_ms, by_ms)
        self._store.writer.finish_written()
        return len(seqs)

    def reschedule_range(
        self,
        topic_name: str,
        from_ms: int,
        to_ms: int,
        *,
        deliver_at_ms: int | None = None,
        by_ms: int | None = None,
    ) -> int:
        with self._store.writer.lock:
            seqs = self._pending_in_range(topic_name, from_ms, to_ms)
            self._move(seqs, deliver_at_ms, by_ms)
        self._store.writer.finish_written()
        return len(seqs)

    def _move(self, seqs: I64, deliver_at_ms: int | None, by_ms: int | None) -> dict[int, tuple[int, int]]:
        """Re-enter pending seqs; maps each to its new seq and time. The near ones go to the releaser."""
        if (deliver_at_ms is None) == (by_ms is None):
            raise RequestError("give either a new time or a span to move by")
        now_ms = self._now_ms()
        due = self._store.indexes.entries.take(seqs)["deliver_at_ms"].astype(np.int64)
        if deliver_at_ms is not None:
            require_int("deliver_at_ms", deliver_at_ms)
            due, by_ms = np.zeros_like(due), deliver_at_ms
        require_int("by_ms", by_ms)
        assert by_ms is not None
        if len(due):
            check_delay(int(due.max()) + by_ms, self._settings, now_ms)
        due = np.maximum(due + max(by_ms, -SEQ_MAX), 0)
        moved: dict[int, tuple[int, int]] = {}
        near_below_ms = now_ms + self._settings.lead_ms
        self._store.writer.reserve(self._store.move_payloads(seqs), len(seqs))  # all of them move, or none
        for part in self._store.re_enter_all(seqs, due, near_below_ms, now_ms):
            first = part.appended.first_seq
            pairs = zip(part.old_seqs.tolist(), part.deliver_at_ms.tolist(), strict=True)
            moved.update((old, (first + i, at)) for i, (old, at) in enumerate(pairs))
            self._store.writer.finish(part.appended)
            self._sender.hand_over(part.deliver_at_ms, first, part.flags)
        return moved

    # -- finding, under the writer lock -----------------------------------------------------------

    def _resolve(self, handles: Sequence[Handle]) -> I64:
        """The seq that each handle means now, -1 where it means nothing known."""
        _require_handles(handles)
        named = self._store.indexes.topics.named
        topics = [named(handle.topic) if handle.broker == self._broker_id else None for handle in handles]
        topic_ids = np.array([topic.id if topic else 0 for topic in topics], np.int64)
        seqs = np.array([handle.seq for handle in handles], np.int64)
        return self._seqs_of(topic_ids, pa.array([handle.id for handle in handles], pa.string()), seqs)

    def _seqs_of(self, topic_ids: I64, ids: pa.Array, seqs: I64) -> I64:
        """The seq of the message that each topic, id and (perhaps outdated) seq mean, -1 for none."""
        indexes = self._store.indexes
        ledger = indexes.ledger
        hashes = hash_slices(*slices_of(ids), topic_seeds(topic_ids, PURPOSE_ID))
        known = (seqs >= ledger.head_seq) & (seqs < ledger.next_seq) & (topic_ids > 0)
        candidates = np.flatnonzero(known)
        matches = indexes.entries.take(seqs[candidates])["id_hash"] == hashes[candidates]
        matches &= ledger.states(seqs[candidates]) != State.MOVED
        direct = np.zeros(len(seqs), np.bool_)
        direct[candidates] = matches
        others = np.flatnonzero(~direct)
        seqs[others] = _NOT_FOUND
        # Few of the others are known by their id; only those are read back.
        suspects = np.unique(others[indexes.find.find_many(hashes[others])[0]])
        for index in suspects[topic_ids[suspects] > 0].tolist():
            found = self._store.seqs_with_id(int(topic_ids[index]), ids[index].as_py())
            seqs[index] = found[0] if found else _NOT_FOUND
        return seqs

    def _answers(self, seqs: I64) -> list[CancelAnswer]:
        found = np.flatnonzero(seqs != _NOT_FOUND)
        answers = [CancelAnswer.UNKNOWN] * len(seqs)
        states = self._store.indexes.ledger.states(seqs[found])
        for index, state in zip(found.tolist(), states.tolist(), strict=True):
            answers[index] = ANSWERS[State(state)]
        return answers

    def _pending_in_range(self, topic_name: str, from_ms: int, to_ms: int) -> I64:
        topic = self._topics.require(topic_name)
        require_int("from_ms", from_ms)
        require_int("to_ms", to_ms)
        require_forward(from_ms, to_ms)
        if from_ms == to_ms:
            raise RequestError("the range is empty: it ends when it begins; let it end later")
        found = [seqs for seqs, _ in scan_pending(self._store, topic.id, from_ms, to_ms)]
        return np.concatenate(found) if found else np.empty(0, np.int64)


def _require_handles(handles: Sequence[Handle]) -> None:
    require_kind("what is named", handles, (list, tuple), "a list of Handle")
    for handle in handles:
        require_kind("a handle", handle, Handle, "a Handle (Handle.parse reads one from text)")
        if type(handle.seq) is not int or not -_SEQ_MAX <= handle.seq < _SEQ_MAX:
            raise IllegalHandle(f"no message has the number {handle.seq!r}; pass the handle of the receipt")
