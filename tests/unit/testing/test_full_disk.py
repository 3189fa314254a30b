"""A FaultyDisk with a bound: who is refused, who is not, and how space comes back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tidemill.core.errors import DiskFullError
from tidemill.testing import FaultyDisk

_BLOCK = 4096


def test_growth_is_refused_and_overwriting_is_not(tmp_path: Path) -> None:
    with FaultyDisk(1, capacity_bytes=4 * _BLOCK) as disk:
        file = disk.open(tmp_path / "f", create=True)
        file.preallocate(4 * _BLOCK)
        with pytest.raises(DiskFullError, match="no space left"):
            file.write(4 * _BLOCK, b"x")
        with pytest.raises(DiskFullError):
            file.preallocate(5 * _BLOCK)
        file.write(3 * _BLOCK, b"y" * _BLOCK)
        file.scatter(np.array([0], np.int64), np.array([5], "<i8"))
        file.sync()
        assert file.size() == 4 * _BLOCK
        assert disk.free_bytes(tmp_path) == 0


def test_a_write_that_does_not_fit_leaves_its_first_part(tmp_path: Path) -> None:
    with FaultyDisk(1, capacity_bytes=2 * _BLOCK) as disk:
        file = disk.open(tmp_path / "f", create=True)
        with pytest.raises(DiskFullError):
            file.write(100, b"x" * (3 * _BLOCK))
        assert file.size() == 2 * _BLOCK


def test_all_files_share_the_room(tmp_path: Path) -> None:
    with FaultyDisk(1, capacity_bytes=2 * _BLOCK) as disk:
        disk.open(tmp_path / "1", create=True).preallocate(2 * _BLOCK)
        with pytest.raises(DiskFullError):
            disk.open(tmp_path / "2", create=True).write(0, b"x")


def test_room_comes_back_by_removing_cutting_or_a_larger_disk(tmp_path: Path) -> None:
    with FaultyDisk(1, capacity_bytes=2 * _BLOCK) as disk:
        first = disk.open(tmp_path / "1", create=True)
        first.preallocate(_BLOCK)
        disk.open(tmp_path / "2", create=True).preallocate(_BLOCK)
        third = disk.open(tmp_path / "3", create=True)
        disk.remove(tmp_path / "2")
        third.write(0, b"x")
        first.truncate(0)
        third.write(_BLOCK, b"x")
        with pytest.raises(DiskFullError):
            third.write(2 * _BLOCK, b"x")
        disk.capacity_bytes = 3 * _BLOCK
        third.write(2 * _BLOCK, b"x")


def test_rows_scattered_into_holes_need_room(tmp_path: Path) -> None:
    with FaultyDisk(1, capacity_bytes=_BLOCK) as disk:
        file = disk.open(tmp_path / "f", create=True)
        file.truncate(100 * _BLOCK)
        file.scatter(np.array([0], np.int64), np.array([1], "<i8"))
        with pytest.raises(DiskFullError):
            file.scatter(np.array([40_000], np.int64), np.array([2], "<i8"))
        assert file.read(0, 1) == b"\1"


def test_a_full_disk_is_still_full_after_a_crash(tmp_path: Path) -> None:
    for power_cut in (False, True):
        path = tmp_path / str(power_cut)
        disk = FaultyDisk(1, capacity_bytes=_BLOCK)
        file = disk.open(path, create=True)
        file.write(0, b"x")
        file.sync()
        disk.sync_dir(tmp_path)
        with disk.crash(power_cut=power_cut) as left:
            again = left.open(path)
            again.write(1, b"y")
            with pytest.raises(DiskFullError):
                again.write(_BLOCK, b"z")
        path.unlink()


def test_an_allocation_lost_in_a_power_cut_gives_its_room_back(tmp_path: Path) -> None:
    free_bytes = set()
    for seed in range(20):
        path = tmp_path / str(seed)
        disk = FaultyDisk(seed, capacity_bytes=3 * _BLOCK)
        file = disk.open(path, create=True)
        file.preallocate(_BLOCK)
        file.sync()
        disk.sync_dir(tmp_path)
        file.preallocate(3 * _BLOCK)
        with disk.crash(power_cut=True) as left:
            free_bytes.add(left.free_bytes(tmp_path))
    assert free_bytes == {0, 2 * _BLOCK}
