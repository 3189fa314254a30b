"""`python -m benchmarks downtime`: how fast a broker releases what fell due in weeks of downtime.

Owns the story and its verdict. Messages are sent in bulk, some of them in FIFO groups; most are in the wheel,
rolling, the last are not absorbed yet. The broker is stopped and started again, Spark takes the wheel, and
then the simulated clock leaps five weeks: everything is overdue at once. Seen are the steps it takes, and
afterwards every row of the history: each message is out once, a queue is in order of due time but for a
break where a step's work met another's, and a group has no break at all.
"""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.table import Table

from benchmarks.spark_here import SparkOption, require_spark
from tidemill.broker.broker import Broker
from tidemill.broker.query.table_schemas import Wanted
from tidemill.cli.bench.measuring import (
    DataOption,
    JsonOption,
    QuickOption,
    wait_until_absorbed,
    work_directory,
)
from tidemill.cli.bench.workload import BATCH_ROWS, table_due_at
from tidemill.cli.child_processes import wait_for
from tidemill.cli.output import console
from tidemill.cli.planned_bar import PlannedStep, planned_bar
from tidemill.core.clock import SimulatedClock, stopwatch_s
from tidemill.core.config import BrokerSettings
from tidemill.core.errors import StorageError
from tidemill.core.limits import DAY_MS
from tidemill.log.arrays import I64
from tidemill.server.process.pipeline_command import pipeline_command
from tidemill.timer.progress import PROGRESS_NAME
from tidemill.timer.settings import StepLimits

PLAIN, GROUPED = "plain", "grouped"
_START_MS = 1_800_000_000_000
_AWAY_MS = 35 * DAY_MS
_DUE_SPAN_MS = 21 * DAY_MS
_GROUPS = 64
_LOOK_EVERY_S = 0.02
_FULL_COUNT, _QUICK_COUNT = 1_000_000, 20_000
_ABOUT_S = 40.0  # that it all takes
_SETTINGS = BrokerSettings(retention_ms=400 * DAY_MS)


@dataclass(frozen=True, slots=True)
class WorkedOff:
    """What was seen of it."""

    count: int
    took_s: float
    steps: tuple[int, ...]  # messages that each step handed over, all shards together; empty if not reported
    step_max: int  # what one may hand over
    breaks_max: int  # in the order of due time of one queue
    group_breaks: int
    vias: dict[str, int]

    def figures(self) -> dict[str, float | dict[str, int]]:
        return {
            "downtime_messages": self.count,
            "downtime_worked_off_s": round(self.took_s, 3),
            "downtime_steps": len(self.steps),
            "downtime_largest_step": max(self.steps, default=0),
            "downtime_step_bound": self.step_max,
            "downtime_order_breaks": self.breaks_max,
            "downtime_group_breaks": self.group_breaks,
            "downtime_vias": self.vias,
        }


def downtime(
    data: DataOption = None,
    spark_master: SparkOption = "local[2]",
    is_json: JsonOption = False,
    quick: QuickOption = False,
) -> None:
    """Measure how Spark works off a million messages, overdue after five weeks. Half a minute."""
    require_spark(spark_master)
    count = _QUICK_COUNT if quick else _FULL_COUNT
    plan = [PlannedStep(f"{count:,} messages fall due while the broker is down", _ABOUT_S)]
    with work_directory(data) as directory, planned_bar(plan) as next_step:
        found = sleep_for_weeks(directory / "data", count, spark_master)
        next_step()
    if is_json:
        print(json.dumps(found.figures()))
    else:
        console().print(downtime_table(found))


def sleep_for_weeks(directory: Path, count: int, master: str) -> WorkedOff:
    """Measure with `count` messages, a twentieth of them in FIFO groups.

    Without a master the broker runs the timer.

    `StorageError` if any message is lost, doubled or out of its group's order.
    """
    late_count = count // 10
    with Broker(directory, _SETTINGS, clock=SimulatedClock(_START_MS)) as broker:
        _send(broker, 0, count - late_count)
    clock = SimulatedClock(_START_MS + _SETTINGS.lead_ms)
    command = pipeline_command(sys.executable, directory, _SETTINGS, master) if master else ()
    with Broker(directory, _SETTINGS, clock=clock, pipeline_command=command) as broker:
        wait_until_absorbed(broker)
        if master:
            wait_for("Spark is the timer runner", lambda: broker.status().pipeline.runner == "spark")
        _send(broker, count - late_count, late_count)
        begun_s = stopwatch_s()
        clock.advance_to(_START_MS + _AWAY_MS)
        steps = _watch_until_out(broker)
        took_s = stopwatch_s() - begun_s
        return _judged(broker, count, took_s, steps)


def _send(broker: Broker, first: int, count: int) -> None:
    """Due over three weeks, from tomorrow on, in no order, many at the same second."""
    for start in range(first, first + count, BATCH_ROWS):
        numbers = np.arange(start, min(start + BATCH_ROWS, first + count), dtype=np.int64)
        dues = _START_MS + DAY_MS + (numbers * 7_919) % (_DUE_SPAN_MS // 1_000) * 1_000
        is_grouped = numbers % 20 == 7
        broker.send_table(table_due_at(dues[~is_grouped]), topic=PLAIN)
        groups = np.char.add("g", (numbers[is_grouped] // 20 % _GROUPS).astype(str))
        table = table_due_at(dues[is_grouped]).append_column("message_group", pa.array(groups.tolist()))
        broker.send_table(table, topic=GROUPED)


def _watch_until_out(broker: Broker) -> tuple[int, ...]:
    """What each step of Spark hands over, until nothing is pending."""
    handed_over: dict[int, int] = {}
    progress, pause = broker.directory / "timer" / PROGRESS_NAME, threading.Event()
    is_over = False
    while not is_over:
        is_over = broker.status().pending == 0
        if progress.exists():
            said = json.loads(progress.read_text())
            handed_over[said["batch"]] = sum(shard["handed_over"] for shard in said["shards"])
        pause.wait(_LOOK_EVERY_S)
    return tuple(handed for handed in handed_over.values() if handed)


def _judged(broker: Broker, count: int, took_s: float, steps: tuple[int, ...]) -> WorkedOff:
    rows = [_history(broker, topic) for topic in (PLAIN, GROUPED)]
    whole = pa.concat_tables(rows)
    seqs = whole["seq"].to_numpy()
    if len(seqs) != count or len(np.unique(seqs)) != count:
        raise StorageError(f"{count} were sent and {len(seqs)} came out, {len(np.unique(seqs))} of them once")
    groups = _groups_in_order(broker)
    found = WorkedOff(
        count=count,
        took_s=took_s,
        steps=steps,
        step_max=StepLimits().due_max * broker.settings.shards,
        breaks_max=_breaks(rows[0], rows[0]["queue"].to_numpy()),
        group_breaks=_breaks(groups, groups["group"].to_numpy()),
        vias={pair["values"]: pair["counts"] for pair in pc.value_counts(whole["via"]).to_pylist()},
    )
    if found.group_breaks:
        raise StorageError(f"FIFO groups are out of order in {found.group_breaks} places")
    return found


def _history(broker: Broker, topic: str) -> pa.Table:
    return _read(broker, "history", topic, "seq", "deliver_at", "queue", "offset", "via")


def _groups_in_order(broker: Broker) -> pa.Table:
    """The grouped messages as a consumer meets them, with a number for each group."""
    found = _read(broker, "messages", GROUPED, "seq", "deliver_at", "queue", "offset", "message_group")
    groups = found["message_group"].combine_chunks().dictionary_encode().indices
    return found.append_column("group", groups.cast(pa.int64()))


def _read(broker: Broker, table: str, topic: str, *columns: str) -> pa.Table:
    wanted = Wanted(table, topic, columns=columns)
    return pa.Table.from_batches(broker.tables.read(wanted), wanted.schema())


def _breaks(rows: pa.Table, parts: I64) -> int:
    """In how many places a part of the rows (a queue, a group) goes back in (due, seq), at most."""
    due = rows["deliver_at"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_numpy()
    seq = rows["seq"].to_numpy()
    as_met = np.lexsort((rows["offset"].to_numpy(), rows["queue"].to_numpy(), parts))
    part, due, seq = parts[as_met], due[as_met], seq[as_met]
    goes_back = (due[1:] < due[:-1]) | ((due[1:] == due[:-1]) & (seq[1:] < seq[:-1]))
    inside = part[1:] == part[:-1]
    return int(np.bincount(part[1:][goes_back & inside], minlength=1).max())


def downtime_table(found: WorkedOff) -> Table:
    """For people."""
    table = Table(title=f"{found.count:,} overdue messages after five weeks", show_header=False)
    table.add_row("all in their topics after", f"{found.took_s:.1f} s")
    table.add_row("steps, and the largest", f"{len(found.steps)}, {max(found.steps, default=0):,} messages")
    table.add_row("a step may hand over", f"{found.step_max:,} messages")
    table.add_row("breaks in the order of a queue", f"{found.breaks_max}")
    table.add_row("breaks in the order of a FIFO group", f"{found.group_breaks}")
    table.add_row("they came", ", ".join(f"{count:,} {via}" for via, count in found.vias.items()))
    return table
