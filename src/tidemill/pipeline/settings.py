"""Settings the broker passes to the pipeline process at its start: data directory and bounds of a step."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tidemill.timer.settings import StepLimits, StoreKind, TimerSettings

EXECUTOR_MEMORY_MB = 512  # that a worker of a cluster must have free


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """Passed as one JSON argument; everything that changes afterwards is in `timer/target`."""

    data_directory: str
    master: str
    lead_ms: int
    timer: TimerSettings
    limits: StepLimits
    entry_chunk_rows: int
    poll_ms: int  # how often the idle query looks at the target
    driver_memory_mb: int = 512
    executor_memory_mb: int = EXECUTOR_MEMORY_MB

    @property
    def timer_directory(self) -> Path:
        return Path(self.data_directory) / "timer"

    @property
    def scratch_directory(self) -> Path:
        """For Spark's checkpoint and temporary files; emptied whenever a pipeline starts."""
        return self.timer_directory / "spark"

    @property
    def temporary_directory(self) -> Path:
        """For what Java leaves behind when it is killed; emptied with the rest."""
        return self.scratch_directory / "temporary"

    @property
    def entries_directory(self) -> Path:
        return Path(self.data_directory) / "index" / "entries"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> PipelineSettings:
        fields = json.loads(text)
        timer = TimerSettings(**{**fields["timer"], "store": StoreKind(fields["timer"]["store"])})
        return cls(**{**fields, "timer": timer, "limits": StepLimits(**fields["limits"])})
