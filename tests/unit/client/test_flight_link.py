"""Batches over Flight: only a few are on their way unanswered, and a refusal ends the feeding."""

from __future__ import annotations

import queue
from typing import Any

import pyarrow as pa
import pytest

from tidemill.client.tables import flight_link

_FEW = 3  # of the largest, the broker takes no more at once
_ANSWER = pa.table(
    {"id": ["a"], "seq": [1], "deliver_at_ms": [1], "is_repeat": [False]},
).replace_schema_metadata({"broker": "b"})


class _Writer:
    """A broker's end of a put: says what was on its way whenever an answer was asked for."""

    def __init__(self, answered: int) -> None:
        self._left = answered
        self._written: queue.Queue[Any] = queue.Queue()
        self.unanswered: list[int] = []
        self.is_closed = False
        self._answers = self._count = 0

    def do_put(self, *_: Any) -> tuple[_Writer, _Writer]:
        return self, self

    def write_batch(self, batch: Any) -> None:
        self._count += 1
        self.unanswered.append(self._count - self._answers)
        self._written.put(batch)

    def done_writing(self) -> None:
        pass

    def read(self) -> Any:
        self._written.get(timeout=60)
        if not self._left:
            return None
        self._left -= 1
        self._answers += 1
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _ANSWER.schema) as stream:
            stream.write_table(_ANSWER)
        return sink.getvalue()

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("answered", [20, 5, 0])
def test_few_batches_are_on_their_way_unanswered(answered: int) -> None:
    writer, parts = _Writer(answered), []
    batches = [pa.record_batch({"body": [b"x"]})] * 20
    flight_link._put(writer, batches, "t", None, parts)
    assert len(parts) == answered and writer.is_closed
    assert max(writer.unanswered) <= _FEW
    assert len(writer.unanswered) <= answered + _FEW
