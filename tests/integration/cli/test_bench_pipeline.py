"""`tidemill bench pipeline`: its figures are explained, and the whole runs on real Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidemill.cli.bench.figures import PIPELINE_FIGURES
from tidemill.cli.main import run
from tidemill.server.process.pipeline_command import why_not_spark

_BENCHMARKS = Path(__file__).resolve().parents[3] / "docs" / "benchmarks.md"


def test_every_figure_is_explained() -> None:
    text = _BENCHMARKS.read_text()
    assert not [figure.name for figure in PIPELINE_FIGURES if f"`{figure.name}`" not in text]


def test_an_impossible_master_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "pipeline", "--spark-master", "nowhere"]) != 0
    assert "spark-master 'nowhere' is unknown" in capsys.readouterr().err


@pytest.mark.skipif(bool(why_not_spark()), reason=f"Spark cannot run here: {why_not_spark()}")
def test_a_quick_run_has_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "pipeline", "--quick", "--json", "--data", str(tmp_path)]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert list(figures) == [figure.name for figure in PIPELINE_FIGURES]
    assert figures["pipeline_absorb_per_s"] > 0
    assert figures["pipeline_java_mb"] > 0
    assert figures["pipeline_checkpoint_files"] > 0
    assert not list(tmp_path.iterdir())
