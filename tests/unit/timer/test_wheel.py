"""The wheel: what is never written takes no space, not even when it is read."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tidemill.log.disk import RealDisk
from tidemill.timer.wheel.wheel import Wheel
from tidemill.timer.wheel.wheel_format import SLOT

_SLOTS = 5 * 8192 + 100  # the last piece is a short one
_IN_MEMORY = Path("/dev/shm")


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A directory on a file system in memory, where a look through a map gives a hole its space."""
    if not _IN_MEMORY.is_dir():
        pytest.skip("no /dev/shm here")
    directory = Path(tempfile.mkdtemp(dir=_IN_MEMORY))
    yield directory
    shutil.rmtree(directory)


def _rows(ticks: np.ndarray) -> np.ndarray:
    rows = np.zeros(len(ticks), SLOT)
    rows.view(np.uint8).reshape(len(ticks), -1)[:] = (ticks % 250 + 1)[:, None]
    return rows


def test_looking_for_what_is_pending_takes_no_disk_space(in_memory: Path) -> None:
    path = in_memory / "wheel"
    wheel = Wheel(RealDisk(), path, _SLOTS)
    assert not wheel.read_range(0, _SLOTS).view(np.uint8).any()
    assert not wheel.read_range(_SLOTS - 10, 2 * _SLOTS - 10).view(np.uint8).any()
    assert not wheel.read(np.arange(0, _SLOTS, 7)).view(np.uint8).any()
    assert wheel.next_pending(0, _SLOTS) is None
    assert path.stat().st_blocks == 0
    wheel.close()


def test_slots_between_holes_are_read_as_they_were_written(tmp_path: Path) -> None:
    ticks = np.array([3, 8191, 3 * 8192, 3 * 8192 + 5, _SLOTS - 1], np.int64)
    wheel = Wheel(RealDisk(), tmp_path / "wheel", _SLOTS)
    whole = np.zeros(_SLOTS, SLOT)
    assert (wheel.read_range(0, _SLOTS) == whole).all()  # every piece is known as a hole, then written
    wheel.write(ticks, _rows(ticks))
    whole[ticks] = _rows(ticks)
    for _ in range(2):
        assert (wheel.read_range(0, _SLOTS) == whole).all()
        assert (wheel.read(ticks) == whole[ticks]).all()
        assert (
            wheel.read(np.arange(_SLOTS - 9, _SLOTS + 9)) == np.concatenate([whole[-9:], whole[:9]])
        ).all()
        assert (wheel.read_range(8000, 8400) == whole[8000:8400]).all()
        assert len(wheel.read_range(5, 5)) == 0
        wheel.close()
        wheel = Wheel(RealDisk(), tmp_path / "wheel", _SLOTS)
    wheel.close()
