"""What became of the messages of a send, in columns; and the forms in which callers hear of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from tidemill.core.errors import BusyError, RequestError
from tidemill.core.frozen import frozen
from tidemill.core.model import NO_OFFSET, NO_QUEUE, NO_SEQ, NO_TIME_MS, Handle, SendResult
from tidemill.core.send_answers import encode_answers
from tidemill.log.arrays import I64, Flags, all_of, each_of
from tidemill.store.formats.texts import Texts, text_at

Answer = SendResult | RequestError | BusyError


@frozen
class Answers:
    """One value for each message: of a column that is None, the one that means nothing."""

    count: int
    seqs: range | I64  # NO_SEQ: not timed, or refused
    due: I64 | int
    ids: Texts
    queues: I64 | None = None  # that a message went into at once
    offsets: I64 | None = None
    is_repeat: Flags | None = None  # the message was there already: same id, or once by key
    notes: Sequence[str] | None = None
    errors: dict[int, RequestError | BusyError] | None = None  # by row

    @classmethod
    def refused(cls, count: int, error: RequestError | None = None) -> Answers:
        """The answers to messages that are all refused; or to none."""
        errors: dict[int, RequestError | BusyError] = (
            {} if error is None else dict.fromkeys(range(count), error)
        )
        return cls(
            count, all_of(NO_SEQ, count), all_of(NO_TIME_MS, count), [b""] * count, errors=errors or None
        )

    def part(self, at: int, end: int) -> Answers:
        """The answers to some of the messages, as if they had been sent alone."""
        rows = slice(at, end)
        return Answers(
            end - at,
            self.seqs[rows],
            self.due if isinstance(self.due, int) else self.due[rows],
            self.ids[rows],
            None if self.queues is None else self.queues[rows],
            None if self.offsets is None else self.offsets[rows],
            None if self.is_repeat is None else self.is_repeat[rows],
            None if self.notes is None else self.notes[rows],
            {row - at: error for row, error in self.errors.items() if at <= row < end}
            if self.errors
            else None,
        )

    # -- forms ------------------------------------------------------------------------------------

    def encoded(self, broker_id: str) -> bytes:
        """The answer to a request of the wire format."""
        special: dict[str, dict[int, object]] = {}
        if self.is_repeat is not None:
            special["repeats"] = {
                row: text_at(self.ids, row).decode() for row in self.is_repeat.nonzero()[0].tolist()
            }
        if self.notes is not None:
            special["notes"] = {row: note for row, note in enumerate(self.notes) if note}
        if self.errors:
            special["errors"] = {row: [e.code, str(e)] for row, e in sorted(self.errors.items())}
        return encode_answers(
            broker_id,
            self.seqs if isinstance(self.seqs, range) else self.seqs.tolist(),
            self.due if isinstance(self.due, int) else self.due.tolist(),
            None if self.queues is None else self.queues.tolist(),
            None if self.offsets is None else self.offsets.tolist(),
            special,
        )

    def results(self, broker_id: str, topics: Iterable[str]) -> list[Answer]:
        """An answer for each message, given their topics."""
        nowhere = [NO_QUEUE] * self.count
        columns = (
            map(bytes.decode, self.ids),
            topics,
            self.seqs if isinstance(self.seqs, range) else self.seqs.tolist(),
            each_of(self.due, self.count).tolist(),
            nowhere if self.queues is None else self.queues.tolist(),
            nowhere if self.offsets is None else self.offsets.tolist(),
            [False] * self.count if self.is_repeat is None else self.is_repeat.tolist(),
            self.notes or [""] * self.count,
        )
        answers: list[Answer] = []
        for message_id, topic, seq, due_ms, queue, offset, is_repeat, note in zip(*columns, strict=True):
            if due_ms != NO_TIME_MS:
                handle = Handle(broker_id, topic, message_id, seq)
                result = SendResult(message_id, topic, handle, due_ms, is_repeat, note)
            elif offset != NO_OFFSET:
                result = SendResult(message_id, topic, None, None, is_repeat, note, queue, offset)
            else:
                result = SendResult(message_id, topic, None, None, is_repeat, note)
            answers.append(result)
        for row, error in (self.errors or {}).items():
            answers[row] = error
        return answers


@frozen
class TableResult:
    """The answer to a table: ids and seqs (-1: not timed) in row order."""

    broker: str
    topics: pa.Array
    ids: pa.Array
    seqs: I64
    deliver_at_ms: I64
    is_repeat: Flags  # the message was there already: same id, or once by key
    notes: pa.Array | None = None  # texts, empty where there is nothing to say; None: nowhere is

    def __len__(self) -> int:
        return len(self.seqs)

    def handles(self) -> list[Handle]:
        """Handles of the timed messages, in row order."""
        timed = np.flatnonzero(self.seqs >= 0)
        columns = (column.take(pa.array(timed)).to_pylist() for column in (self.topics, self.ids))
        rows = zip(*columns, self.seqs[timed].tolist(), strict=True)
        return [Handle(self.broker, topic, message_id, seq) for topic, message_id, seq in rows]


def table_result(broker_id: str, topics: Sequence[pa.Array], parts: Sequence[Answers]) -> TableResult:
    """The answer to a table whose frames have these answers, all of them columns."""
    none = np.empty(0, np.int64)
    notes = None
    if any(part.notes is not None for part in parts):
        notes = pa.array([note for part in parts for note in part.notes or [""] * part.count], pa.string())
    return TableResult(
        broker_id,
        pa.concat_arrays([pa.array([], pa.string()), *topics]),
        pa.concat_arrays([pa.array([], pa.string()), *(part.ids for part in parts)]),
        np.concatenate([none, *(np.asarray(part.seqs) for part in parts)]),
        np.concatenate([none, *(each_of(part.due, part.count) for part in parts)]),
        np.concatenate([none > 0, *(_flags(part) for part in parts)]),
        notes,
    )


def _flags(part: Answers) -> Flags:
    return np.zeros(part.count, np.bool_) if part.is_repeat is None else part.is_repeat
