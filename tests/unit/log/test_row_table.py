"""RowTable: fixed-width rows by index, across chunk files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tidemill.core.errors import DiskFullError
from tidemill.log.row_table import MakeRoom, RowTable
from tidemill.testing import FaultyDisk

_ROW = np.dtype([("seq", "<u8"), ("due", "<i4")])
_CHUNK_ROWS = 8


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    with FaultyDisk(1) as disk:
        yield disk


def _table(disk: FaultyDisk, directory: Path, make_room: MakeRoom = lambda: False) -> RowTable:
    return RowTable(disk, directory, _ROW, _CHUNK_ROWS, make_room=make_room)


def _rows(first: int, end: int) -> npt.NDArray[np.void]:
    rows = np.zeros(end - first, _ROW)
    rows["seq"] = np.arange(first, end)
    rows["due"] = -np.arange(first, end)
    return rows


def test_rows_read_back_within_and_across_chunks(disk: FaultyDisk, tmp_path: Path) -> None:
    table = _table(disk, tmp_path / "t")
    table.write(0, _rows(0, 3))
    table.write(3, _rows(3, 30))
    assert table.read(1, 5).tolist() == _rows(1, 5).tolist()
    assert table.read(6, 27).tolist() == _rows(6, 27).tolist()
    assert len(table.read(8, 8)) == 0
    assert disk.names(tmp_path / "t") == [f"{first:020d}" for first in (0, 8, 16, 24)]
    table.close()


def test_rows_appended_after_a_read_are_seen(disk: FaultyDisk, tmp_path: Path) -> None:
    table = _table(disk, tmp_path / "t")
    table.write(0, _rows(0, 2))
    assert len(table.read(0, 2)) == 2
    table.write(2, _rows(2, 8))
    assert table.read(0, 8).tolist() == _rows(0, 8).tolist()
    table.close()


def test_writing_again_replaces(disk: FaultyDisk, tmp_path: Path) -> None:
    table = _table(disk, tmp_path / "t")
    table.write(0, _rows(0, 10))
    table.write(7, _rows(107, 109))
    assert table.read(6, 10)["seq"].tolist() == [6, 107, 108, 9]
    table.close()


def test_take_keeps_the_order_asked_for(disk: FaultyDisk, tmp_path: Path) -> None:
    table = _table(disk, tmp_path / "t")
    table.write(0, _rows(0, 30))
    for indexes in ([], [5], [3, 3, 1], [29, 0, 8, 7, 16, 0]):
        assert table.take(np.array(indexes, np.int64))["seq"].tolist() == indexes
    table.close()


def test_the_head_is_cut_by_whole_chunks(disk: FaultyDisk, tmp_path: Path) -> None:
    table = _table(disk, tmp_path / "t")
    table.write(0, _rows(0, 30))
    table.cut_head(17)
    assert disk.names(tmp_path / "t") == [f"{first:020d}" for first in (16, 24)]
    assert table.read(16, 30).tolist() == _rows(16, 30).tolist()
    table.close()


def test_the_tail_is_cut_to_the_row(disk: FaultyDisk, tmp_path: Path) -> None:
    table = _table(disk, tmp_path / "t")
    table.write(0, _rows(0, 30))
    table.cut_tail(11)
    assert disk.names(tmp_path / "t") == [f"{first:020d}" for first in (0, 8)]
    assert (tmp_path / "t" / f"{8:020d}").stat().st_size == 3 * _ROW.itemsize
    table.write(11, _rows(211, 215))
    assert table.read(9, 15)["seq"].tolist() == [9, 10, 211, 212, 213, 214]
    table.close()


def test_a_table_opened_again_has_its_rows(disk: FaultyDisk, tmp_path: Path) -> None:
    table = _table(disk, tmp_path / "t")
    table.write(5, _rows(5, 20))
    table.close()
    table = _table(disk, tmp_path / "t")
    assert table.read(5, 20).tolist() == _rows(5, 20).tolist()
    table.cut_head(16)
    assert disk.names(tmp_path / "t") == [f"{16:020d}"]
    table.close()


def test_only_a_sync_makes_rows_survive_a_power_cut(tmp_path: Path) -> None:
    lost = 0
    for seed in range(40):
        disk = FaultyDisk(seed)
        table = _table(disk, tmp_path / str(seed))
        table.write(0, _rows(0, 20))
        table.sync()
        table.write(20, _rows(20, 40))
        with disk.crash(power_cut=True) as left:
            again = _table(left, tmp_path / str(seed))
            assert again.read(0, 20).tolist() == _rows(0, 20).tolist()
            lost += len(left.names(tmp_path / str(seed))) < 5
            again.close()
    assert lost


def test_on_a_full_disk_the_owner_is_asked_for_room_until_it_has_none(tmp_path: Path) -> None:
    with FaultyDisk(1, capacity_bytes=4096) as disk:
        ballast = disk.open(tmp_path / "ballast", create=True)
        ballast.preallocate(4096)
        ballast.close()

        def drop_ballast() -> bool:
            was_there = disk.exists(tmp_path / "ballast")
            disk.remove(tmp_path / "ballast")
            return was_there

        table = _table(disk, tmp_path / "t", drop_ballast)
        table.write(0, _rows(0, _CHUNK_ROWS))
        assert table.read(0, _CHUNK_ROWS).tolist() == _rows(0, _CHUNK_ROWS).tolist()
        with pytest.raises(DiskFullError):
            table.write(_CHUNK_ROWS, _rows(8, 9))
        table.close()
