"""Parts for tests, shipped and public: a clock moved by hand and a disk that fails by plan."""

from __future__ import annotations

from tidemill.testing.clock import ManualClock
from tidemill.testing.disk import FaultyDisk
from tidemill.testing.faults import FaultPlan, SimulatedCrash

__all__ = ["FaultPlan", "FaultyDisk", "ManualClock", "SimulatedCrash"]
