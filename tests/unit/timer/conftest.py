from __future__ import annotations

import sys
from pathlib import Path

import pytest

# The harness is shared with tests/property; pytest's importlib mode puts no test directory on the path.
sys.path.insert(0, str(Path(__file__).parent))

from timer_harness import ShardHarness


@pytest.fixture
def shard(tmp_path):
    """One small shard, open at the start and consistent at the end of every test."""
    harness = ShardHarness(tmp_path / "timer").open()
    yield harness
    harness.close()
    harness.check()
