"""Weeks of downtime, small and on the embedded runner; `python -m benchmarks downtime` does it on Spark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.downtime import _breaks, sleep_for_weeks


@pytest.mark.slow
def test_what_fell_due_in_weeks_of_sleep_comes_out_once_and_in_order(tmp_path: Path) -> None:
    found = sleep_for_weeks(tmp_path / "data", 8_000, master="")
    assert found.count == 8_000
    assert found.vias == {"embedded": 8_000}
    assert found.group_breaks == 0
    # What was not absorbed when the clock leapt may come after what was.
    assert found.breaks_max <= 2


def test_a_break_in_the_order_is_seen() -> None:
    parts = np.array([0, 1, 0, 1, 0], np.int64)
    rows = pa.table(
        {
            "seq": pa.array([1, 2, 3, 4, 5], pa.int64()),
            "deliver_at": pa.array([10, 50, 20, 40, 20], pa.timestamp("ms", "UTC")),
            "queue": pa.array([0, 0, 0, 0, 0], pa.int64()),
            "offset": pa.array([0, 1, 2, 3, 4], pa.int64()),
        }
    )
    assert _breaks(rows, parts) == 1
    assert _breaks(rows.take([0, 2, 4]), parts[[0, 2, 4]]) == 0
