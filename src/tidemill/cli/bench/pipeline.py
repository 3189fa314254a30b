"""`tidemill bench pipeline`: what the timer pipeline on Spark does on this machine, and what it takes.

Starts a pipeline of its own over entries made for it (no broker, no messages), and prints the figures beside
their targets. A missed target is a figure, not a failure: the exit code is 0.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from statistics import median
from typing import Annotated

import typer

from tidemill.cli.bench.figures import PIPELINE_FIGURES, print_figures
from tidemill.cli.bench.measuring import DataOption, JsonOption, QuickOption, work_directory
from tidemill.cli.bench.pipeline_rig import PipelineRig
from tidemill.cli.planned_bar import PlannedStep, planned_bar
from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import StorageError
from tidemill.server.process.pipeline_command import check_master, why_not_spark

_SMALL_STEP = 100
_COST_STEPS = 3
_START_S = 20.0  # about how long Spark takes to start: for the time that is left


@dataclass(frozen=True, slots=True)
class _Scale:
    few: int  # pending when the first batch is measured
    batch: int
    middle: int  # absorbed in large batches between the two
    small_steps: int
    idle_s: float
    soak_s: float


_FULL = _Scale(10_000, 1 << 18, 10_000_000, 15, 15.0, 45.0)
_QUICK = _Scale(1_000, 50_000, 100_000, 3, 1.0, 3.0)


def pipeline(
    data: DataOption = None,
    spark_master: Annotated[str, typer.Option(help="where Spark runs")] = "local[2]",
    is_json: JsonOption = False,
    quick: QuickOption = False,
) -> None:
    """Measure the timer pipeline on Spark. Some minutes."""
    check_master(spark_master)
    if problem := why_not_spark():
        raise StorageError(problem)
    scale = _QUICK if quick else _FULL
    figures: dict[str, float] = {}
    with work_directory(data) as directory, planned_bar(_plan(scale)) as next_step:
        with PipelineRig(directory, spark_master) as rig:
            next_step()
            for measure in (_speed, _at_rest, _soak):
                figures |= measure(rig, scale)
                next_step()
    print_figures("the pipeline on Spark", PIPELINE_FIGURES, figures, is_json=is_json, is_quick=quick)


def _plan(scale: _Scale) -> list[PlannedStep]:
    """The steps and their estimated seconds."""
    return [
        PlannedStep("starting Spark", _START_S),
        PlannedStep("absorbing", _START_S + scale.middle / 500_000),
        PlannedStep("small steps, and none", scale.small_steps + scale.idle_s),
        PlannedStep("step after step", scale.soak_s),
    ]


def _speed(rig: PipelineRig, scale: _Scale) -> dict[str, float]:
    """Absorbing in large batches, with few pending and with many."""
    rig.warm_up(scale.batch)
    rig.make_entries(scale.few)
    rig.absorb()
    first_ms = median(rig.step_ms(scale.batch) for _ in range(_COST_STEPS))
    rig.make_entries(scale.middle)
    middle_s = rig.absorb()
    last_ms = median(rig.step_ms(scale.batch) for _ in range(_COST_STEPS))
    return {"pipeline_absorb_per_s": scale.middle / middle_s, "pipeline_cost_growth": last_ms / first_ms}


def _at_rest(rig: PipelineRig, scale: _Scale) -> dict[str, float]:
    """Small steps, and no steps at all."""
    small_ms = median(rig.step_ms(_SMALL_STEP) for _ in range(scale.small_steps))
    before_s, begun_s = rig.cpu_s(), stopwatch_s()
    threading.Event().wait(scale.idle_s)
    # By process: the time of a worker that Spark ends for idleness is gone with it.
    spent_s = sum(now_s - before_s.get(pid, 0.0) for pid, now_s in rig.cpu_s().items())
    idle = spent_s / (stopwatch_s() - begun_s)
    return {"pipeline_small_step_ms": small_ms, "pipeline_idle_core_percent": 100 * idle}


def _soak(rig: PipelineRig, scale: _Scale) -> dict[str, float]:
    """Step after step; what grows with them."""
    before, files = rig.memory_mb(), 0
    until_s = stopwatch_s() + scale.soak_s
    while stopwatch_s() < until_s:
        rig.step_ms(_SMALL_STEP)
        files = max(files, rig.checkpoint_file_count())
    after = rig.memory_mb()
    return {
        "pipeline_java_mb": after["java"],
        "pipeline_python_mb": after["python"],
        "pipeline_memory_growth_mb": sum(after.values()) - sum(before.values()),
        "pipeline_checkpoint_files": float(files),
    }
