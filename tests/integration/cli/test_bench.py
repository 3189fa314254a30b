"""`tidemill bench engine --quick`: every figure is there under its name, and none is nonsense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidemill.cli.bench.figures import FIGURES, LEVEL_FIGURES
from tidemill.cli.bench.workload import BATCH_ROWS, tables
from tidemill.cli.main import run


def test_a_workload_has_the_count_asked_for_and_lies_in_the_future() -> None:
    made = list(tables(BATCH_ROWS + 10, 1_000))
    assert [table.num_rows for table in made] == [BATCH_ROWS, 10]
    assert min(made[1]["deliver_at"].to_pylist()) > 1_000
    assert {len(body) for body in made[1]["body"].to_pylist()} == {100}


def test_the_quick_bench_gives_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "engine", "--quick", "--json", "--data", str(tmp_path)]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert list(figures) == [figure.name for figure in FIGURES]
    assert figures["rest_late_min_ms"] >= 0
    assert figures["burst_1m_last_ms"] >= 0
    assert all(figures[name] > 0 for name in ("bulk_send_per_s", "absorb_per_s", "cancel_per_s"))
    assert not list(tmp_path.iterdir())


def test_the_quick_bench_of_levels_gives_every_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "levels", "--quick", "--json", "--data", str(tmp_path)]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert list(figures) == [figure.name for figure in LEVEL_FIGURES]
    assert all(value > 0 for value in figures.values())
    assert not list(tmp_path.iterdir())
