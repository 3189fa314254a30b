"""Damage to the commit log and the consumer log: refused or harmless, and salvaged with a true report.

`TIDEMILL_DAMAGE_SEEDS` says how many seeds are run (`make simulate` runs the full set).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simulation.salvaged_lives import run

_SEEDS = int(os.environ.get("TIDEMILL_DAMAGE_SEEDS", "50"))


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_a_damaged_log_is_salvaged_and_what_is_missing_is_reported(seed: int, tmp_path: Path) -> None:
    try:
        run(seed, tmp_path)
    except BaseException:
        print(f"replay: PYTHONPATH=tests .venv/bin/python -m simulation.replay --salvage {seed}")
        raise
