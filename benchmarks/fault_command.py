"""`python -m benchmarks faults`: how late messages are while the processes of a served broker are hurt.

Prints a row for each fault, or one flat JSON object. The names are a contract:
`fault_<name>_late_p99_ms`, beside it `fault_<name>_machine_p99_ms`, and how many messages were lost, doubled
and early in all.
"""

from __future__ import annotations

import json

from rich.table import Table
from rich.text import Text

from benchmarks.fault_load import Verdict
from benchmarks.faults import FAULTS, run_faults
from benchmarks.spark_here import SparkOption, require_spark
from tidemill.cli.bench.measuring import DataOption, JsonOption, work_directory
from tidemill.cli.output import console
from tidemill.cli.planned_bar import PlannedStep, planned_bar

LATE_P99_MS_MAX = 50.0
# About how many seconds Spark takes to start, and a fault until it is over: for the time that is left.
_START_S = 20.0
_FAULT_S = 20.0


def faults(
    data: DataOption = None, spark_master: SparkOption = "local[2]", is_json: JsonOption = False
) -> None:
    """Measure how late messages are while processes are killed and stopped. Four minutes."""
    require_spark(spark_master)
    steps = [PlannedStep("starting", _START_S), *(PlannedStep(f.meaning, _FAULT_S) for f in FAULTS)]
    with work_directory(data) as directory, planned_bar(steps) as next_step:
        verdict = run_faults(directory, spark_master, lambda fault, number: next_step())
    if is_json:
        print(json.dumps(fault_figures(verdict)))
    else:
        console().print(faults_table(verdict))


def fault_figures(verdict: Verdict) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, under in verdict.by_fault.items():
        figures[f"fault_{name}_late_p99_ms"] = round(under.late_p99_ms, 1)
        figures[f"fault_{name}_machine_p99_ms"] = round(under.machine_p99_ms, 1)
    wrong = {"lost": verdict.lost, "doubled": verdict.doubled, "early": verdict.early}
    return figures | {f"faults_{what}": len(ids) for what, ids in wrong.items()}


def faults_table(verdict: Verdict) -> Table:
    """For people."""
    table = Table(
        title="lateness while the pipeline is hurt",
        caption=f"{verdict.sent_count:,} messages: {len(verdict.lost)} lost, {len(verdict.doubled)} doubled, "
        f"{len(verdict.early)} early. The machine: a process that only writes and syncs.",
    )
    table.add_column("fault")
    for column in ("messages", "p99", "latest", "machine, p99"):
        table.add_column(column, justify="right")
    table.add_column(f"p99 < {LATE_P99_MS_MAX:.0f} ms")
    for fault in FAULTS:
        under = verdict.by_fault[fault.name]
        holds = under.late_p99_ms < LATE_P99_MS_MAX
        table.add_row(
            fault.meaning,
            f"{under.count:,}",
            f"{under.late_p99_ms:.1f} ms",
            f"{under.late_max_ms:.0f} ms",
            f"{under.machine_p99_ms:.1f} ms",
            Text("holds", "green") if holds else Text("does not hold", "bold red"),
        )
    return table
