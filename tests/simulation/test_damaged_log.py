"""Damage to the commit log of a running broker: nothing is delivered but what was sent, and all is reported.

`TIDEMILL_DAMAGE_SEEDS` says how many seeds are run (`make simulate` runs the full set).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simulation.damaged_log_lives import run

_SEEDS = int(os.environ.get("TIDEMILL_DAMAGE_SEEDS", "50"))


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_a_damaged_log_is_stepped_over_and_reported(seed: int, tmp_path: Path) -> None:
    try:
        run(seed, tmp_path)
    except BaseException:
        print(f"replay: PYTHONPATH=tests .venv/bin/python -m simulation.replay --damaged-log {seed}")
        raise
