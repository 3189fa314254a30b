"""`python -m benchmarks timers --quick`: every figure is there for both stores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import run
from tidemill.cli.bench.timer_stores import TIMER_FIGURES
from tidemill.core.config import TIMER_STORES


@pytest.mark.slow
def test_the_quick_bench_of_timers_gives_every_figure_for_both_stores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["timers", "--quick", "--json", "--data", str(tmp_path)]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert set(figures) == {f"{store}_{figure.name}" for store in TIMER_STORES for figure in TIMER_FIGURES}
    assert all(
        figures[f"{store}_{rate}"] > 0 for store in TIMER_STORES for rate in ("absorb_per_s", "due_per_s")
    )
    # RocksDB writes nothing for what only waits; the wheel writes a unit each time a timer rolls.
    assert figures["rocksdb_month_written_bytes"] < figures["wheel_month_written_bytes"]
    assert not list(tmp_path.iterdir())
