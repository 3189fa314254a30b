"""The answers to a scheduled table: a lazy sequence of results and errors.

Owns the rule of what is raised: an error that ends the call before any row has its answer. After that it is
the answer of every row that has none, so that no answer is lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, overload

from tidemill.core.errors import (
    ForbiddenError,
    RequestError,
    TidemillError,
    UnauthorizedError,
    UnreachableError,
)
from tidemill.core.model import NO_TIME_MS, Handle, SendResult
from tidemill.core.send_answers import Answer

RowByRow = Callable[[Any], list[Answer]]  # the answers of a batch
# The broker counts the batches of a stream, and the rows of a batch.
_BATCH = re.compile(r"batch \d+ was not stored: ")
_ROW = re.compile(r"row (\d+): ")


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A batch that was stored: the broker's answer as an Arrow table, and the topic of its rows."""

    broker: str
    topics: Any  # an Arrow column, or one text for all
    table: Any

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def result(self, row: int) -> SendResult:
        return self._result(self._topic(row), *(column[row].as_py() for column in self.table.columns))

    def results(self) -> Iterator[SendResult]:
        names = [self.topics] * len(self) if isinstance(self.topics, str) else self.topics.to_pylist()
        columns = (column.to_pylist() for column in self.table.columns)
        return (self._result(*row) for row in zip(names, *columns, strict=True))

    def _topic(self, row: int) -> str:
        return self.topics if isinstance(self.topics, str) else str(self.topics[row].as_py())

    def _result(
        self, topic: str, message_id: str, seq: int, due_ms: int, is_repeat: bool, note: str = ""
    ) -> SendResult:
        """One of a row's columns; notes are a column only where the broker has any."""
        if due_ms == NO_TIME_MS:
            return SendResult(message_id, topic, None, None, is_repeat, note)
        handle = Handle(self.broker, topic, message_id, seq)
        return SendResult(message_id, topic, handle, due_ms, is_repeat, note)


def nothing_stored() -> StoredPart:
    """The answer to a table without rows."""
    import pyarrow as pa

    kinds = {"id": pa.string(), "seq": pa.int64(), "deliver_at_ms": pa.int64(), "is_repeat": pa.bool_()}
    return StoredPart("", "", pa.table({name: pa.array([], kind) for name, kind in kinds.items()}))


class Scheduled(Sequence[Answer]):
    """What became of each row, in order."""

    def __init__(self, parts: Sequence[StoredPart | list[Answer]]) -> None:
        self.parts = parts
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Answer: ...
    @overload
    def __getitem__(self, index: slice) -> list[Answer]: ...
    def __getitem__(self, index: int | slice) -> Answer | list[Answer]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        for part, end in zip(self.parts, self._ends, strict=True):
            if 0 <= at < end:
                row = at - end + len(part)
                return part.result(row) if isinstance(part, StoredPart) else part[row]
        raise IndexError(index)

    def __iter__(self) -> Iterator[Answer]:
        for part in self.parts:
            yield from part.results() if isinstance(part, StoredPart) else part

    @property
    def errors(self) -> dict[int, Exception]:
        """What was wrong, by row; empty when all was stored."""
        found: dict[int, Exception] = {}
        for part, end in zip(self.parts, self._ends, strict=True):
            if isinstance(part, list):
                start = end - len(part)
                found |= {start + row: said for row, said in enumerate(part) if isinstance(said, Exception)}
        return found


Parts = list[StoredPart | list[Answer]]


def scheduled(batches: Sequence[Any], put: Callable[[Parts], None], row_by_row: RowByRow) -> Scheduled:
    """Store the batches of a table in order.

    `put` stores those that have no part yet, and adds the part of each. A batch with a wrong row goes
    `row_by_row`: each gets its answer.
    """
    parts: Parts = []
    while len(parts) < len(batches):
        try:
            _put_next(batches, parts, put, row_by_row)
        except TidemillError as fault:
            first = sum(map(len, parts))
            missing = sum(batch.num_rows for batch in batches[len(parts) :])
            fault.args = (_of_rows(fault, first, first + missing - 1),)
            if not parts:
                raise
            parts.append([fault.with_traceback(None)] * missing)
            break
    return Scheduled(parts)


def _put_next(
    batches: Sequence[Any], parts: Parts, put: Callable[[Parts], None], row_by_row: RowByRow
) -> None:
    try:
        put(parts)
    except (UnauthorizedError, ForbiddenError):  # who calls is not a row's fault
        raise
    except RequestError:
        parts.append(row_by_row(batches[len(parts)]))


def _of_rows(fault: TidemillError, first: int, last: int) -> str:
    """What is wrong, with the rows of the caller's table."""
    said, rows = str(fault), f"the rows {first} to {last} of the table"
    if prefix := _BATCH.match(said):
        said = said[prefix.end() :]
    if row := _ROW.match(said):
        said = f"row {first + int(row[1])}: {said[row.end() :]}"
    if isinstance(fault, UnreachableError):
        return f"{rows} have no answer, and whether they are stored is not known: {said}"
    return f"{rows} were not stored: {said}"
