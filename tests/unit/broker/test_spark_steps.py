"""The steps that Spark reports are counted once each, with any reader; a damaged report counts none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidemill.broker.control.spark_steps import SparkSteps
from tidemill.log.disk import RealDisk
from tidemill.timer.progress import PROGRESS_NAME, note_progress, read_progress
from tidemill.timer.ready_format import Runner
from tidemill.timer.step_figures import Stage, StepFigures


def _row(shard: int, epoch: int, step: int, **given: float) -> dict[str, float]:
    times = {"scan_s": 0.1, "due_s": 0.2, "absorb_s": 0.3, "hand_over_s": 0.4}
    counts = {"absorbed": 10, "handed_over": 4, "rolled": 2, "already_due": 1}
    return {"shard": shard, "epoch": epoch, "step": step, **counts, **times, **given}


def _nothing(shard: int, epoch: int, step: int) -> dict[str, float]:
    names = ("absorbed", "handed_over", "rolled", "already_due", "scan_s", "due_s", "absorb_s", "hand_over_s")
    return _row(shard, epoch, step, **dict.fromkeys(names, 0))


@pytest.fixture
def figures() -> StepFigures:
    return StepFigures()


def _counts(figures: StepFigures) -> tuple[int, int, int, int]:
    counts = figures.counts[Runner.SPARK]
    return counts.absorbed, counts.handed_over, counts.rolled, counts.already_due


def test_each_step_is_counted_once_and_none_is_missed(tmp_path: Path, figures: StepFigures) -> None:
    disk = RealDisk()
    note_progress(disk, tmp_path, 0, [_row(0, 2, 7)])  # before this process looked
    steps = SparkSteps(disk, tmp_path, figures)
    steps.look()
    assert _counts(figures) == (0, 0, 0, 0)
    for batch in range(1, 6):  # many between two looks
        note_progress(disk, tmp_path, batch, [_row(0, 3, batch), _row(1, 3, batch)])
    steps.look()
    steps.look()
    assert _counts(figures) == (100, 40, 20, 10)
    note_progress(disk, tmp_path, 6, [_nothing(0, 3, 5), _row(1, 3, 6)])
    note_progress(disk, tmp_path, 0, [_row(0, 4, 6)])  # the query was started again
    steps.look()
    assert _counts(figures) == (110, 44, 22, 11)
    assert sum(figures.stages[Stage.ABSORB].counts) == 11
    assert figures.stages[Stage.DUE].sum_s == pytest.approx(2.2)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"batch": 1}', '{"batch": 1, "shards": [{"shard": "x"}]}']
)
def test_a_report_that_cannot_be_read_counts_nothing(
    tmp_path: Path, figures: StepFigures, content: str
) -> None:
    (tmp_path / PROGRESS_NAME).write_text(content)
    steps = SparkSteps(RealDisk(), tmp_path, figures)
    steps.look()
    note_progress(RealDisk(), tmp_path, 1, [_row(0, 1, 1)])
    steps.look()
    assert _counts(figures)[0] in (0, 10)
    assert json.loads((tmp_path / PROGRESS_NAME).read_text())["batch"] == 1


def test_the_file_stays_small(tmp_path: Path) -> None:
    for batch in range(1, 100):
        note_progress(RealDisk(), tmp_path, batch, [_row(0, 1, batch)])
    assert [step.step for step in read_progress(RealDisk(), tmp_path)] == list(range(68, 100))
