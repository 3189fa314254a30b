"""Measures the disk itself: what one small sync takes. No figure of its own, but the floor under lateness."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidemill.core.clock import stopwatch_s
from tidemill.core.limits import MIB
from tidemill.log.disk import RealDisk

_COUNT = 200
_RECORD_BYTES = 200  # about a release record for one message


@dataclass(frozen=True, slots=True)
class DiskSync:
    p50_ms: float
    p99_ms: float


def measure_sync(directory: Path) -> DiskSync:
    """Append small records to a preallocated file, each with its own sync, as a log does at rest."""
    file = RealDisk().open(directory / "sync", create=True)
    took_ms = []
    try:
        file.preallocate(MIB)
        file.sync()
        for number in range(_COUNT):
            file.write(number * _RECORD_BYTES, bytes(_RECORD_BYTES))
            begun_s = stopwatch_s()
            file.sync()
            took_ms.append((stopwatch_s() - begun_s) * 1000)
    finally:
        file.close()
    p50_ms, p99_ms = np.percentile(took_ms, [50, 99])
    return DiskSync(float(p50_ms), float(p99_ms))
