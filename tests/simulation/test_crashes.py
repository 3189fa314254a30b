"""The crash simulation: each message in its topic once, never early, none lost, every answer true.

`TIDEMILL_SEEDS` says how many seeds are run (`make simulate` runs the full set).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simulation.lives import run

_SEEDS = int(os.environ.get("TIDEMILL_SEEDS", "200"))


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_nothing_is_lost_doubled_or_early_over_crashes(seed: int, tmp_path: Path) -> None:
    try:
        run(seed, tmp_path)
    except BaseException:
        print(f"replay: PYTHONPATH=tests .venv/bin/python -m simulation.replay {seed}")
        raise
