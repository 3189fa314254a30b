"""Cancel and reschedule: by handle, by key, by range of due times, each with a definite answer.

Owns how a handle finds its message: by seq while that still names it, else by (topic, id), the newest
winning. What is pending is looked at and acted on under the writer lock, in one frame, and the answer
leaves after that frame is safe, so every answer is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.broker.change.requests import Earlier, NamedRows, RequestId, asked, earlier, parts_of
from tidemill.broker.send.admission import check_delay, check_not_negative
from tidemill.broker.send.write_context import WriteContext
from tidemill.core.answers import Moved
from tidemill.core.arguments import require_int, require_kind
from tidemill.core.durations import require_forward
from tidemill.core.errors import IllegalHandleError, RequestError
from tidemill.core.model import SEQ_MAX, CancelAnswer, Handle
from tidemill.log.arrays import I64, U8
from tidemill.store.commit_log import CommitLog
from tidemill.store.find.hashing import PURPOSE_ID, hash_slices, topic_seeds
from tidemill.store.formats.request_format import Request
from tidemill.store.formats.texts import slices_of
from tidemill.store.ledger import State
from tidemill.store.upkeep.moving import MovedMessages, move_bounds, move_payloads, reschedule

_NOT_FOUND = -1
_SEQ_MAX = 1 << 63
_UNKNOWN = int(State.MOVED)
_NO_ROWS = np.empty(0, np.int64)
# What to answer to a cancel, by the state that the message was found in.
ANSWERS = {
    State.PENDING: CancelAnswer.CANCELLED,
    State.RELEASED: CancelAnswer.RELEASED,
    State.CANCELLED: CancelAnswer.ALREADY_CANCELLED,
    State.MOVED: CancelAnswer.UNKNOWN,
}


class To(TypedDict, total=False):
    """The arguments of a reschedule that say where to: a time, a delay from now, or a span to move by."""

    deliver_at_ms: int | None
    delay_ms: int | None
    by_ms: int | None


class Chosen(TypedDict, total=False):
    """The arguments that choose messages of a topic: a key, or a range of due times."""

    key: str | None
    from_ms: int | None
    to_ms: int | None


@dataclass(frozen=True, slots=True)
class Where:
    """Chooses the pending messages of a topic with a key, or due in `[from_ms, to_ms)`."""

    topic: str
    key: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None

    def __post_init__(self) -> None:
        if self.from_ms is None and self.to_ms is None:
            require_kind("key", self.key, str, "a text")
            return
        if self.key is not None:
            raise RequestError("give either a key or a range of due times")
        require_int("from_ms", self.from_ms)
        require_int("to_ms", self.to_ms)
        require_forward(*self.due_range)
        if self.from_ms == self.to_ms:
            raise RequestError("the range is empty: start and end are equal; use a later end")

    @property
    def due_range(self) -> tuple[int, int]:
        assert self.from_ms is not None
        assert self.to_ms is not None
        return self.from_ms, self.to_ms

    @property
    def kind(self) -> str:
        return "range" if self.key is None else "key"

    @property
    def fields(self) -> tuple[str | int, ...]:
        return (self.topic, *self.due_range) if self.key is None else (self.topic, self.key)


@dataclass(frozen=True, slots=True)
class NewTime:
    """Where a reschedule moves messages to: exactly one is given."""

    deliver_at_ms: int | None = None
    delay_ms: int | None = None
    by_ms: int | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in self._all().items() if value is not None}
        if len(given) != 1:
            raise RequestError("give exactly one of deliver_at_ms, delay_ms and by_ms")
        for name, value in given.items():
            require_int(name, value)
        if self.delay_ms is not None:
            check_not_negative(self.delay_ms)

    def _all(self) -> dict[str, int | None]:
        return {"deliver_at_ms": self.deliver_at_ms, "delay_ms": self.delay_ms, "by_ms": self.by_ms}

    def fields(self) -> list[int | None]:
        return list(self._all().values())

    def due(self, due: I64, now_ms: int, before: Earlier | None) -> tuple[I64, int]:
        """The times to which messages move that are due at `due`, as base times and a span to add."""
        if self.by_ms is not None:
            return due, self.by_ms
        if self.delay_ms is not None:  # it counts from when the first of them were moved
            at_ms = now_ms + self.delay_ms if before is None else before.moved_to_ms()
        else:
            assert self.deliver_at_ms is not None
            at_ms = self.deliver_at_ms
        return np.zeros_like(due), at_ms


class Canceller(WriteContext):
    """The cancel and reschedule verbs. Thread-safe.

    With a request id, a call that is repeated gets the answer of the first one (`requests.py`).
    """

    # -- cancel -----------------------------------------------------------------------------------

    def cancel(self, handles: Sequence[Handle], request_id: RequestId = None) -> list[CancelAnswer]:
        """Cancel each message; says of each what became of it."""
        codes = self._cancel_named(self._named(handles), request_id)
        return [ANSWERS[State(code)] for code in codes.tolist()]

    def cancel_rows(self, topics: pa.Array, ids: pa.Array, seqs: I64, request_id: RequestId = None) -> U8:
        """Cancel the message of each row; says of each what became of it, as an index into `ANSWERS`."""
        return self._cancel_named(NamedRows.of(topics, ids, seqs), request_id)

    def _cancel_named(self, named: NamedRows, request_id: RequestId) -> U8:
        request = asked(request_id, "cancel", named)
        with self._store.write() as tx:
            codes = self._cancel(tx, self._seqs_of(named), request)
        self._store.finish_written()
        return codes

    def _cancel(self, tx: CommitLog, seqs: I64, request: Request | None) -> U8:
        """Cancel what is pending of these seqs; the answer of each."""
        before = earlier(self._store, request, self._now_ms())
        codes = self._codes(seqs)
        pending = np.flatnonzero(codes == State.PENDING)
        if before is not None:
            codes[pending] = _UNKNOWN  # it came after the request was carried out, which cannot have meant it
            codes[before.rows] = State.PENDING
            return codes
        distinct, firsts = np.unique(seqs[pending], return_index=True)
        is_repeated = np.ones(len(pending), np.bool_)
        is_repeated[firsts] = False
        codes[pending[is_repeated]] = State.CANCELLED
        if request is not None:
            request = replace(request, rows=pending[firsts].astype(np.uint32))
        tx.cancel(distinct, self._now_ms(), request)
        return codes

    def cancel_where(self, where: Where, request_id: RequestId = None) -> int:
        """Cancel every pending message that is chosen; says how many."""
        request = asked(request_id, f"cancel {where.kind}", *where.fields)
        with self._store.write() as tx:
            before = earlier(self._store, request, self._now_ms())
            if before is None:
                seqs = self._pending(where)
                tx.cancel(seqs, self._now_ms(), request)
        self._store.finish_written()
        return len(seqs) if before is None else before.count

    # -- reschedule -------------------------------------------------------------------------------

    def reschedule(self, handles: Sequence[Handle], to: NewTime, request_id: RequestId = None) -> list[Moved]:
        """Move each pending message to a new time, or by a span; says of each where it is now."""
        named = self._named(handles)
        request = asked(request_id, "reschedule", named, *to.fields())
        with self._store.write() as tx:
            before = earlier(self._store, request, self._now_ms())
            seqs = self._seqs_of(named)
            codes = self._codes(seqs)
            movable, moved = np.flatnonzero(codes == State.PENDING), dict[int, tuple[int, int]]()
            if before is not None:
                movable, moved = np.setdiff1d(movable, before.rows), before.moved_rows()
                if before.is_complete:
                    is_readable = self._store.are_readable(seqs[movable])
                    codes[movable[is_readable]] = _UNKNOWN  # as in `_cancel`
                    movable = movable[~is_readable]  # the answer to the first was the same
            is_readable = self._store.are_readable(seqs[movable])
            damaged, movable = movable[~is_readable], movable[is_readable]
            rows, parts = self._move_rows(tx, seqs, movable, to, request, before)
        self._finish(parts)
        moved |= rows
        results = [Moved(answer=ANSWERS[State(code)]) for code in codes.tolist()]
        for row in damaged.tolist():
            results[row] = Moved(answer=CancelAnswer.DAMAGED)
        for row, (new_seq, due_ms) in moved.items():
            handle = handles[row]
            results[row] = Moved(Handle(self._broker_id, handle.topic, handle.id, new_seq), due_ms)
        return results

    def _move_rows(
        self,
        tx: CommitLog,
        seqs: I64,
        movable: I64,
        to: NewTime,
        request: Request | None,
        before: Earlier | None,
    ) -> tuple[dict[int, tuple[int, int]], list[MovedMessages]]:
        """Move the messages of the rows `movable`; the new seq and time of each row, and what moved."""
        distinct, indexes = np.unique(seqs[movable], return_inverse=True)
        parts = self._move(tx, distinct, to, request, before, movable, indexes)
        if not parts:
            return {}, parts
        new_seqs = np.concatenate([part.seqs for part in parts])[indexes]
        due = np.concatenate([part.deliver_at_ms for part in parts])[indexes]
        pairs = zip(new_seqs.tolist(), due.tolist(), strict=True)
        return dict(zip(movable.tolist(), pairs, strict=True)), parts

    def reschedule_where(self, where: Where, to: NewTime, request_id: RequestId = None) -> int:
        """Move every pending message that is chosen and reads back; says how many."""
        request = asked(request_id, f"reschedule {where.kind}", *where.fields, *to.fields())
        parts: list[MovedMessages] = []
        with self._store.write() as tx:
            before = earlier(self._store, request, self._now_ms())
            count = before.count if before is not None else 0
            if before is None or not before.is_complete:
                seqs = self._pending(where)
                seqs = seqs[self._store.are_readable(seqs)]
                if before is not None:
                    hashes = tx.entries.take(seqs)["id_hash"]
                    seqs = seqs[~np.isin(hashes, before.moved_ids())]
                parts = self._move(tx, seqs, to, request, before)
                count += len(seqs)
        self._finish(parts)
        return count

    def _move(
        self,
        tx: CommitLog,
        seqs: I64,
        to: NewTime,
        request: Request | None,
        before: Earlier | None,
        rows: I64 = _NO_ROWS,
        indexes: I64 = _NO_ROWS,
    ) -> list[MovedMessages]:
        """Re-enter pending seqs, all or none, in parts.

        `rows` are the rows of the request that name them, `indexes` which of them each row names.
        """
        store, now_ms = self._store, self._now_ms()
        if not len(seqs):
            return []
        old_due = tx.entries.take(seqs)["deliver_at_ms"].astype(np.int64)
        base, span_ms = to.due(old_due, now_ms, before)
        check_delay(int(base.max()) + span_ms, self._settings, now_ms)
        due = np.maximum(base + max(span_ms, -SEQ_MAX), 0)
        bounds = move_bounds(store, seqs)
        payloads, requests = move_payloads(store, seqs, bounds), list[Request]()
        if request is not None:
            requests = parts_of(request, bounds, before, rows, indexes)
            payloads = [size + part.size for size, part in zip(payloads, requests, strict=True)]
        tx.reserve(payloads, len(seqs))
        near_below_ms = self._sender.near_below_ms(now_ms)
        return reschedule(store, seqs, due, bounds, near_below_ms, now_ms, requests)

    def _finish(self, parts: Sequence[MovedMessages]) -> None:
        """Wait until what moved is safe; the near ones go to the releaser."""
        self._store.finish_written()
        for part in parts:
            self._sender.hand_over(part.deliver_at_ms, part.appended.first_seq, part.flags)

    # -- finding, under the writer lock -----------------------------------------------------------

    def _named(self, handles: Sequence[Handle]) -> NamedRows:
        """The messages that handles name. A handle of another broker has no topic here."""
        _require_handles(handles)
        topics = [handle.topic if handle.broker == self._broker_id else "" for handle in handles]
        ids = pa.array([handle.id for handle in handles], pa.string())
        seqs = np.array([handle.seq for handle in handles], np.int64)
        return NamedRows.of(pa.array(topics, pa.string()), ids, seqs)

    def _seqs_of(self, rows: NamedRows) -> I64:
        """The seq of the message that each topic, id and (perhaps outdated) seq mean, -1 for none."""
        named = self._store.topics.named
        topic_of_name = np.array([topic.id if (topic := named(name)) else 0 for name in rows.names], np.int64)
        topic_ids, ids, seqs = topic_of_name[rows.which], rows.ids, rows.seqs.copy()
        ledger = self._store.ledger
        hashes = hash_slices(*slices_of(ids), topic_seeds(topic_ids, PURPOSE_ID))
        known = (seqs >= ledger.head_seq) & (seqs < ledger.next_seq) & (topic_ids > 0)
        candidates = np.flatnonzero(known)
        entries = self._store.entries.take(seqs[candidates])
        matches = entries["id_hash"] == hashes[candidates]
        # What is damaged is listed with a handle that has no id: its seq alone names it.
        has_no_id = pc.equal(pc.binary_length(ids), 0).fill_null(False).to_numpy(zero_copy_only=False)
        matches |= has_no_id[candidates] & (entries["topic_id"] == topic_ids[candidates])
        matches &= ledger.states(seqs[candidates]) != State.MOVED
        direct = np.zeros(len(seqs), np.bool_)
        direct[candidates] = matches
        others = np.flatnonzero(~direct)
        seqs[others] = _NOT_FOUND
        # Few of the others are known by their id; only those are read back.
        suspects = np.unique(others[self._store.find.find_many(hashes[others])[0]])
        for index in suspects[topic_ids[suspects] > 0].tolist():
            found = self._store.seqs_with_id(int(topic_ids[index]), ids[index].as_py())
            seqs[index] = found[0] if found else _NOT_FOUND
        return seqs

    def _codes(self, seqs: I64) -> U8:
        """The state of each seq, as an index into `ANSWERS`."""
        codes = np.full(len(seqs), _UNKNOWN, np.uint8)
        found = np.flatnonzero(seqs != _NOT_FOUND)
        codes[found] = self._store.ledger.states(seqs[found])
        return codes

    def _pending(self, where: Where) -> I64:
        topic = self._topics.existing(where.topic)
        if where.key is not None:
            return np.array(self._store.seqs_with_key(topic.id, where.key), np.int64)
        found = [seqs for seqs, _ in self._store.scan_pending(topic.id, *where.due_range)]
        return np.concatenate(found) if found else np.empty(0, np.int64)


def _require_handles(handles: Sequence[Handle]) -> None:
    require_kind("handles", handles, (list, tuple), "a list of Handle")
    for handle in handles:
        require_kind("a handle", handle, Handle, "a Handle (Handle.parse reads one from text)")
        if type(handle.seq) is not int or not -_SEQ_MAX <= handle.seq < _SEQ_MAX:
            raise IllegalHandleError(
                f"no message has the number {handle.seq!r}; pass the handle of the send result"
            )
