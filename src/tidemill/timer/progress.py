"""The progress file: what the pipeline's last steps did, from its process to the broker and its operator.

Owns `timer/progress`, a small JSON file that the pipeline replaces after every step:

    {"batch": 17, "shards": [{"shard": 0, "epoch": 3, "step": 41, "absorbed": 900, ...}, ...],
     "before": [{"batch": 16, "shards": [...]}, ...]}

It keeps the last steps, so that one who looks now and then misses none. It decides nothing and is never
synced: what counts is in the shards' cursors and ready files, which the step itself wrote in their safe
order. A file that cannot be read stands for no steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill.core.errors import StorageError
from tidemill.log.disk import Disk, read_file, write_and_rename
from tidemill.timer.step_figures import STEP_STAGES, Stage, StepWork

PROGRESS_NAME = "progress"
_KEPT = 32


@dataclass(frozen=True, slots=True)
class ShardStep:
    """One step of one shard. Steps rise within an epoch, and epochs rise."""

    shard: int
    epoch: int
    step: int
    work: StepWork


def note_progress(disk: Disk, directory: Path, batch: int, shards: Sequence[dict[str, Any]]) -> None:
    """Put what a step did for each shard in front of the file."""
    before = [] if batch == 0 else _steps(disk, directory)[: _KEPT - 1]  # a query that begins counts anew
    content = {"batch": batch, "shards": list(shards), "before": before}
    path = directory / PROGRESS_NAME
    unfinished = path.with_suffix(".unfinished")
    write_and_rename(disk, unfinished, path, [json.dumps(content).encode()], sync=False)


def read_progress(disk: Disk, directory: Path) -> list[ShardStep]:
    """The last steps, oldest first, one for each shard."""
    try:
        rows = [row for step in reversed(_steps(disk, directory)) for row in step["shards"]]
        return [_shard_step(row) for row in rows]
    except (ValueError, TypeError, KeyError):
        return []


def seconds_name(stage: Stage) -> str:
    """What the time of a stage is called in the row of a step."""
    return f"{stage.value.replace('-', '_')}_s"


def _shard_step(row: Mapping[str, Any]) -> ShardStep:
    times = {stage: float(row[seconds_name(stage)]) for stage in STEP_STAGES}
    work = StepWork(
        int(row["absorbed"]), int(row["handed_over"]), int(row["rolled"]), int(row["already_due"]), times
    )
    return ShardStep(int(row["shard"]), int(row["epoch"]), int(row["step"]), work)


def _steps(disk: Disk, directory: Path) -> list[dict[str, Any]]:
    """The steps of the file, newest first."""
    path = directory / PROGRESS_NAME
    if not disk.exists(path):
        return []
    try:
        newest = json.loads(read_file(disk, path))
        steps = [newest, *newest.pop("before", [])]
        return [step for step in steps if isinstance(step["shards"], list)]
    except (StorageError, OSError):  # replaced or removed at this moment
        return []
    except (ValueError, TypeError, KeyError, AttributeError):
        return []
