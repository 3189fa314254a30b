"""Damage to derived files: none early, none lost, none doubled, every answer true, and `check` finds nothing.

`TIDEMILL_DAMAGE_SEEDS` says how many seeds are run (`make simulate` runs the full set).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simulation.damaged_lives import run

_SEEDS = int(os.environ.get("TIDEMILL_DAMAGE_SEEDS", "50"))


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_damage_to_derived_files_is_repaired_and_never_acted_on(seed: int, tmp_path: Path) -> None:
    try:
        run(seed, tmp_path)
    except BaseException:
        print(f"replay: PYTHONPATH=tests .venv/bin/python -m simulation.replay --damage {seed}")
        raise
