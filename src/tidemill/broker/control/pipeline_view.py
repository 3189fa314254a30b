"""What runs the timer and how it is, as the status shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PipelineView:
    runner: str
    store: str  # what keeps the timers: wheel or rocksdb
    state: str
    lag_ms: int
    takeovers: int
    unabsorbed: int  # timed messages that the slowest shard has not read yet
    since_ms: int  # when it took the shards
    problem: str  # what is wrong with the pipeline, and what to do
