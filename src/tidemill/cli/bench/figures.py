"""The figures of the benches: name, meaning, target, and how each is written.

Owns the list in `docs/benchmarks.md` and in the JSON output; the names are a contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

NO_TARGET = "-"  # shown beside others, nothing is promised


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    meaning: str
    target: str
    holds: Callable[[float], bool]
    unit: str

    def text(self, value: float) -> str:
        number = (
            f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
        )
        return f"{number} {self.unit}"


def figures_table(
    title: str, figures: Iterable[Figure], values: Mapping[str, float], *, is_quick: bool
) -> Table:
    """What was measured beside its target, for people."""
    table = Table(title=title + (" (quick: small counts)" if is_quick else ""))
    table.add_column("figure")
    table.add_column("measured", justify="right")
    table.add_column("target", justify="right")
    table.add_column("")
    for figure in figures:
        value = values[figure.name]
        mark = Text("holds", "green") if figure.holds(value) else Text("does not hold", "bold red")
        if figure.target == NO_TARGET:
            mark = Text("")
        table.add_row(figure.meaning, figure.text(value), figure.target, mark)
    return table


FIGURES = (
    Figure("bulk_send_per_s", "sent in batches, durable", "> 500,000 /s", lambda v: v > 500_000, "/s"),
    Figure("absorb_per_s", "absorbed by the timer, durable", "> 2,000,000 /s", lambda v: v > 2_000_000, "/s"),
    Figure(
        "burst_1m_last_ms",
        "a million due at once: the last is visible after",
        "0 to 1,000 ms",
        lambda v: 0 <= v < 1000,
        "ms",
    ),
    Figure("rest_late_min_ms", "lateness at rest, the earliest", ">= 0 ms", lambda v: v >= 0, "ms"),
    Figure("rest_late_p99_ms", "lateness at rest, p99", "< 2 ms", lambda v: v < 2, "ms"),
    Figure("reopen_10m_s", "opened after kill -9 with 10 M pending", "< 5 s", lambda v: v < 5, "s"),
    Figure("cancel_per_s", "cancelled in batches, durable", "> 200,000 /s", lambda v: v > 200_000, "/s"),
    Figure(
        "index_bytes_per_pending", "disk beside each pending message", "<= 176 B", lambda v: v <= 176, "B"
    ),
    Figure(
        "memory_growth_10m_mb",
        "more memory at 10 M pending than at 10 k",
        "flat, < 64 MB",
        lambda v: v < 64,
        "MB",
    ),
)

THREADS_TARGET_PER_S = 40_000

SERVER_FIGURES = (
    Figure(
        "grpc_send_per_s", "single sends over gRPC, 64 in flight", "> 10,000 /s", lambda v: v > 10_000, "/s"
    ),
    Figure(
        "client_send_per_s",
        "single sends of 32 Python threads",
        f"> {THREADS_TARGET_PER_S:,} /s",
        lambda v: v > THREADS_TARGET_PER_S,
        "/s",
    ),
    Figure("receive_ack_per_s", "received and acknowledged by 32", "> 10,000 /s", lambda v: v > 10_000, "/s"),
    Figure("flight_send_per_s", "scheduled over Flight", "> 500,000 /s", lambda v: v > 500_000, "/s"),
    Figure("send_p99_ms_half_load", "a send at half load, p99", "< 10 ms", lambda v: v < 10, "ms"),
    Figure(
        "release_late_p99_ms_half_load",
        "release lateness at half load, p99",
        "< 50 ms",
        lambda v: v < 50,
        "ms",
    ),
    Figure(
        "consumer_late_p99_ms",
        "from its time to a waiting consumer at rest, p99",
        "0 to 10 ms",
        lambda v: 0 <= v < 10,
        "ms",
    ),
)

PIPELINE_FIGURES = (
    Figure(
        "pipeline_absorb_per_s",
        "absorbed through Spark in large batches",
        "> 1,000,000 /s",
        lambda v: v > 1_000_000,
        "/s",
    ),
    Figure("pipeline_small_step_ms", "a small step, median", "< 500 ms", lambda v: v < 500, "ms"),
    Figure(
        "pipeline_cost_growth",
        "cost of a timer at 10 M pending, to that at 10 k",
        "constant, < 1.3",
        lambda v: v < 1.3,
        "",
    ),
    Figure("pipeline_idle_core_percent", "of one core when idle", "< 5 %", lambda v: v < 5, "%"),
    Figure("pipeline_java_mb", "memory of Java", "< 1,024 MB", lambda v: v < 1024, "MB"),
    Figure("pipeline_python_mb", "memory of driver and workers", "< 1,024 MB", lambda v: v < 1024, "MB"),
    Figure(
        "pipeline_memory_growth_mb", "more memory after the soak", "flat, < 64 MB", lambda v: v < 64, "MB"
    ),
    Figure("pipeline_checkpoint_files", "checkpoint files at most", "flat, < 40", lambda v: v < 40, ""),
)

LEVEL_FIGURES = (
    Figure(
        "four_levels_per_s",
        "released from four levels at once, durable",
        "> 250,000 /s",
        lambda v: v > 250_000,
        "/s",
    ),
    Figure(
        "commits_8_to_1",
        "one by one, a commit takes 5 ms: eight in flight to one",
        ">= 3 times",
        lambda v: v >= 3,
        "times",
    ),
    Figure("commits_1_per_s", "the same, one in flight", NO_TARGET, lambda _: True, "/s"),
    Figure("commits_8_per_s", "the same, eight in flight", NO_TARGET, lambda _: True, "/s"),
    Figure(
        "levels_18_to_1_release",
        "released from 18 levels, time to that from one",
        "<= 1.1 times",
        lambda v: v <= 1.1,
        "times",
    ),
    Figure(
        "levels_18_to_1_send",
        "stored on 18 levels, time to that on one",
        "<= 1.1 times",
        lambda v: v <= 1.1,
        "times",
    ),
    Figure("wheel_absorb_per_s", "absorbed by the wheel, durable", NO_TARGET, lambda _: True, "/s"),
    Figure("rocksdb_absorb_per_s", "absorbed by RocksDB, durable", NO_TARGET, lambda _: True, "/s"),
    Figure("wheel_due_per_s", "handed over by the wheel", NO_TARGET, lambda _: True, "/s"),
    Figure("rocksdb_due_per_s", "handed over by RocksDB", NO_TARGET, lambda _: True, "/s"),
)
