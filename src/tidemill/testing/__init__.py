"""Parts for tests, shipped and public: a clock moved by hand, a disk that fails by plan, a plain timer."""

from __future__ import annotations

from tidemill.testing.clock import ManualClock
from tidemill.testing.disk import FaultyDisk
from tidemill.testing.faults import FaultPlan, SimulatedCrash
from tidemill.testing.heap_timer import HeapTimer

__all__ = ["FaultPlan", "FaultyDisk", "HeapTimer", "ManualClock", "SimulatedCrash"]
