"""The messages of the comparison: 100 bytes with a number and the due time.

So a consumer of any system knows how late a message is and whether it is a duplicate.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tidemill.core.limits import HOUR_MS
from tidemill.log.arrays import I64

_NUMBER_DIGITS = 12
_DUE_DIGITS = 13
# Of no pattern: what compresses what it stores has no advantage that real messages would not give it.
_FILLING = os.urandom(100 - _NUMBER_DIGITS - _DUE_DIGITS)
_SPAN_MS = 39 * HOUR_MS
_STRIDE = 7_919_317  # large and odd: due times come in no order


@dataclass(frozen=True, slots=True)
class Messages:
    """Numbered from `first` on, one for each due time."""

    first: int
    due_ms: I64

    def __len__(self) -> int:
        return len(self.due_ms)

    def rows(self) -> Iterator[tuple[int, int, bytes]]:
        """Number, due time, body."""
        for number, due_ms in enumerate(self.due_ms.tolist(), self.first):
            yield number, due_ms, body_of(number, due_ms)


def far_messages(count: int, now_ms: int) -> Messages:
    """Due one to forty hours from now, in no order."""
    return Messages(0, now_ms + HOUR_MS + np.arange(count, dtype=np.int64) * _STRIDE % _SPAN_MS)


def body_of(number: int, due_ms: int) -> bytes:
    return b"%012d%013d%s" % (number, due_ms, _FILLING)


def number_and_due(body: bytes) -> tuple[int, int]:
    due_end = _NUMBER_DIGITS + _DUE_DIGITS
    return int(body[:_NUMBER_DIGITS]), int(body[_NUMBER_DIGITS:due_end])
