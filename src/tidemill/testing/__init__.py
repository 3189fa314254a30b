"""Public parts for tests: a clock moved by hand, a disk with planned faults, a plain timer."""

from __future__ import annotations

from tidemill.testing.clock import ManualClock
from tidemill.testing.disk import FaultyDisk
from tidemill.testing.faults import FaultPlan, SimulatedCrash
from tidemill.testing.heap_timer import HeapTimer

__all__ = ["FaultPlan", "FaultyDisk", "HeapTimer", "ManualClock", "SimulatedCrash"]
