"""The figures of the benches: name, meaning, target, and how each is printed.

Owns the list in `docs/benchmarks.md` and in the JSON output; the names are a contract. The text of a target,
such as `> 500,000`, `0 to 1,000` or `flat, < 64`, is also the rule that is checked.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from tidemill.cli.output import console

_RULE = re.compile(r"(?:(>=|<=|>|<)|([\d,.]+) to) ([\d,.]+)$")
_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    meaning: str
    target: str = ""  # none: shown beside others
    unit: str = ""

    def holds(self, value: float) -> bool:
        rule = _RULE.search(self.target)
        if rule is None:
            return not self.target
        sign, least, most = rule[1], rule[2], float(rule[3].replace(",", ""))
        if sign is None:
            return float(least.replace(",", "")) <= value < most
        return bool(_COMPARE[sign](value, most))

    def text(self, value: float) -> str:
        digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2
        return f"{value:,.{digits}f} {self.unit}"

    def mark(self, value: float) -> Text:
        if not self.target:
            return Text("")
        return Text("holds", "green") if self.holds(value) else Text("does not hold", "bold red")


def print_figures(
    title: str,
    figures: Iterable[Figure],
    values: Mapping[str, float],
    *,
    is_json: bool,
    is_quick: bool,
    also: Iterable[str] = (),
) -> None:
    """Print what was measured beside its target, or as one flat JSON object, with `also` at its end."""
    if is_json:
        names = [*(figure.name for figure in figures), *also]
        print(json.dumps({name: round(values[name], 3) for name in names}))
        return
    table = Table(title=title + (" (quick: small counts)" if is_quick else ""))
    table.add_column("figure")
    table.add_column("measured", justify="right")
    table.add_column("target", justify="right")
    table.add_column("")
    for figure in figures:
        value = values[figure.name]
        target = f"{figure.target} {figure.unit}".strip() if figure.target else "-"
        table.add_row(figure.meaning, figure.text(value), target, figure.mark(value))
    console().print(table)


FIGURES = (
    Figure("bulk_send_per_s", "sent in batches, durable", "> 500,000", "/s"),
    Figure("absorb_per_s", "absorbed by the timer, durable", "> 2,000,000", "/s"),
    Figure("burst_1m_last_ms", "a million due at once: the last is visible after", "0 to 1,000", "ms"),
    Figure("rest_late_min_ms", "lateness at rest, the earliest", ">= 0", "ms"),
    Figure("rest_late_p99_ms", "lateness at rest, p99", "< 2", "ms"),
    Figure("reopen_10m_s", "opened after kill -9 with 10 M pending", "< 5", "s"),
    Figure("cancel_per_s", "cancelled in batches, durable", "> 200,000", "/s"),
    Figure("index_bytes_per_pending", "disk beside each pending message", "<= 176", "B"),
    Figure("memory_growth_10m_mb", "more memory at 10 M pending than at 10 k", "flat, < 64", "MB"),
)

THREADS_TARGET_PER_S = 40_000

SERVER_FIGURES = (
    Figure("grpc_send_per_s", "single sends over gRPC, 64 in flight", "> 10,000", "/s"),
    Figure("client_send_per_s", "single sends of 32 Python threads", f"> {THREADS_TARGET_PER_S:,}", "/s"),
    Figure("receive_ack_per_s", "received and acknowledged by 32", "> 10,000", "/s"),
    Figure("flight_send_per_s", "scheduled over Flight", "> 500,000", "/s"),
    Figure("send_p99_ms_half_load", "a send at half load, p99", "< 10", "ms"),
    Figure("release_late_p99_ms_half_load", "release lateness at half load, p99", "< 50", "ms"),
    Figure("consumer_late_p99_ms", "from its time to a waiting consumer at rest, p99", "0 to 10", "ms"),
)

PIPELINE_FIGURES = (
    Figure("pipeline_absorb_per_s", "absorbed through Spark in large batches", "> 1,000,000", "/s"),
    Figure("pipeline_small_step_ms", "a small step, median", "< 500", "ms"),
    Figure("pipeline_cost_growth", "cost of a timer at 10 M pending, to that at 10 k", "constant, < 1.3"),
    Figure("pipeline_idle_core_percent", "of one core when idle", "< 5", "%"),
    Figure("pipeline_java_mb", "memory of Java", "< 1,024", "MB"),
    Figure("pipeline_python_mb", "memory of driver and workers", "< 1,024", "MB"),
    Figure("pipeline_memory_growth_mb", "more memory after the soak", "flat, < 64", "MB"),
    Figure("pipeline_checkpoint_files", "checkpoint files at most", "flat, < 40"),
)

LEVEL_FIGURES = (
    Figure("four_levels_per_s", "released from four levels at once, durable", "> 250,000", "/s"),
    Figure("commits_8_to_1", "one by one, a commit takes 5 ms: eight in flight to one", ">= 3", "times"),
    Figure("commits_1_per_s", "the same, one in flight", unit="/s"),
    Figure("commits_8_per_s", "the same, eight in flight", unit="/s"),
    Figure("levels_18_to_1_release", "released from 18 levels, time to that from one", "<= 1.1", "times"),
    Figure("levels_18_to_1_send", "stored on 18 levels, time to that on one", "<= 1.1", "times"),
    Figure("wheel_absorb_per_s", "absorbed by the wheel, durable", unit="/s"),
    Figure("rocksdb_absorb_per_s", "absorbed by RocksDB, durable", unit="/s"),
    Figure("wheel_due_per_s", "handed over by the wheel", unit="/s"),
    Figure("rocksdb_due_per_s", "handed over by RocksDB", unit="/s"),
)
