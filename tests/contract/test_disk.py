"""What every `Disk` promises, checked on the real one and on the faulty one alike."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tidemill.core.errors import DirectoryLockedError
from tidemill.log.disk import Disk, RealDisk
from tidemill.testing import FaultyDisk


@pytest.fixture(params=["real", "faulty"])
def disk(request: pytest.FixtureRequest) -> Iterator[Disk]:
    if request.param == "real":
        yield RealDisk()
        return
    with FaultyDisk(seed=1) as faulty:
        yield faulty


def test_what_is_written_is_read(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.write(0, b"hello world")
    file.write(6, memoryview(b"there"))
    assert file.read(0, 11) == b"hello there"
    assert file.size() == 11
    file.close()


def test_reading_past_the_end_gives_less(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.write(0, b"abc")
    assert file.read(1, 100) == b"bc"
    assert file.read(3, 1) == b""
    file.close()


def test_a_gap_reads_as_zero(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.write(4, b"x")
    assert file.read(0, 5) == b"\0\0\0\0x"
    file.close()


def test_writing_nothing_changes_nothing(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.write(10, b"")
    assert file.size() == 0
    file.close()


def test_two_openings_see_each_other(disk: Disk, tmp_path: Path) -> None:
    writer = disk.open(tmp_path / "f", create=True)
    reader = disk.open(tmp_path / "f")
    writer.write(0, b"seen")
    writer.close()
    assert reader.read(0, 4) == b"seen"
    reader.close()


def test_opening_again_keeps_the_bytes(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.write(0, b"kept")
    file.close()
    file = disk.open(tmp_path / "f", create=True)
    assert file.read(0, 4) == b"kept"
    file.close()


def test_opening_what_is_not_there_fails(disk: Disk, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(tmp_path / "missing")


def test_a_map_shows_later_writes(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.preallocate(4096)
    view = file.map(4096)
    file.write(100, b"abc")
    assert view[100:103].tobytes() == b"abc"
    assert not view.flags.writeable
    file.close()
    assert view[100:103].tobytes() == b"abc"


def test_a_map_of_nothing_is_empty(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    assert len(file.map(0)) == 0
    file.close()


def test_scatter_puts_each_row_in_its_place(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.truncate(10 * 8)
    view = file.map(80).view("<i8")
    file.scatter(np.array([7, 2], np.int64), np.array([70, 20], "<i8"))
    assert view.tolist() == [0, 0, 20, 0, 0, 0, 0, 70, 0, 0]
    assert file.size() == 80
    file.close()


def test_scatter_works_after_the_file_has_grown(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.truncate(8)
    file.scatter(np.array([0], np.int64), np.array([1], "<i8"))
    file.truncate(16)
    file.scatter(np.array([1], np.int64), np.array([2], "<i8"))
    assert np.frombuffer(file.read(0, 16), "<i8").tolist() == [1, 2]
    file.close()


def test_preallocate_grows_and_never_shrinks(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.write(0, b"abc")
    file.preallocate(8192)
    assert file.size() == 8192
    assert disk.allocated_bytes(tmp_path / "f") >= 8192
    file.preallocate(100)
    assert file.size() == 8192
    assert file.read(0, 4) == b"abc\0"
    file.close()


def test_truncate_cuts_and_grows_with_zeros(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.write(0, b"abcdef")
    file.truncate(2)
    assert file.read(0, 10) == b"ab"
    file.truncate(4)
    assert file.read(0, 10) == b"ab\0\0"
    file.close()


def test_sync_and_sync_dir_return(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.write(0, b"abc")
    file.sync()
    disk.sync_dir(tmp_path)
    assert file.read(0, 3) == b"abc"
    file.close()


def test_closing_twice_is_harmless(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.close()
    file.close()
    assert disk.exists(tmp_path / "f")


def test_rename_replaces_the_target(disk: Disk, tmp_path: Path) -> None:
    for name in ("new", "old"):
        file = disk.open(tmp_path / name, create=True)
        file.write(0, name.encode())
        file.close()
    disk.rename(tmp_path / "new", tmp_path / "old")
    assert disk.names(tmp_path) == ["old"]
    file = disk.open(tmp_path / "old")
    assert file.read(0, 10) == b"new"
    file.close()


def test_an_open_file_follows_its_rename(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "a", create=True)
    disk.rename(tmp_path / "a", tmp_path / "b")
    file.write(0, b"still here")
    file.close()
    again = disk.open(tmp_path / "b")
    assert again.read(0, 10) == b"still here"
    again.close()


def test_a_directory_can_be_renamed_with_its_files(disk: Disk, tmp_path: Path) -> None:
    disk.make_dir(tmp_path / "shard")
    file = disk.open(tmp_path / "shard" / "f", create=True)
    file.write(0, b"abc")
    file.close()
    disk.rename(tmp_path / "shard", tmp_path / "away")
    assert disk.names(tmp_path) == ["away"]
    file = disk.open(tmp_path / "away" / "f")
    assert file.read(0, 3) == b"abc"
    file.close()


def test_remove_takes_a_file_or_nothing(disk: Disk, tmp_path: Path) -> None:
    disk.open(tmp_path / "f", create=True).close()
    disk.remove(tmp_path / "f")
    disk.remove(tmp_path / "f")
    assert not disk.exists(tmp_path / "f")


def test_a_removed_file_can_still_be_read_by_who_has_it_open(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.write(0, b"abc")
    disk.remove(tmp_path / "f")
    disk.sync_dir(tmp_path)
    assert file.read(0, 3) == b"abc"
    file.close()


def test_a_name_can_be_used_again_after_removal(disk: Disk, tmp_path: Path) -> None:
    first = disk.open(tmp_path / "f", create=True)
    first.write(0, b"first")
    disk.remove(tmp_path / "f")
    second = disk.open(tmp_path / "f", create=True)
    assert second.size() == 0
    first.close()
    second.close()


def test_directories_are_made_listed_and_removed(disk: Disk, tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    disk.make_dir(deep)
    disk.make_dir(deep)
    for name in ("2", "1"):
        disk.open(deep / name, create=True).close()
    assert disk.names(deep) == ["1", "2"]
    disk.remove_tree(tmp_path / "a")
    disk.remove_tree(tmp_path / "a")
    assert disk.names(tmp_path) == []
    assert disk.names(deep) == []


def test_allocated_bytes_adds_up_a_directory(disk: Disk, tmp_path: Path) -> None:
    disk.make_dir(tmp_path / "d")
    for name in ("1", "2"):
        file = disk.open(tmp_path / "d" / name, create=True)
        file.preallocate(64 * 1024)
        file.close()
    assert disk.allocated_bytes(tmp_path / "d") >= 128 * 1024
    assert disk.allocated_bytes(tmp_path / "missing") == 0
    assert 0 < disk.free_bytes(tmp_path) <= disk.total_bytes(tmp_path)


def test_a_lock_is_exclusive_and_names_its_holder(disk: Disk, tmp_path: Path) -> None:
    held = disk.lock(tmp_path / "LOCK", "process 4711")
    with pytest.raises(DirectoryLockedError, match="process 4711"):
        disk.lock(tmp_path / "LOCK", "process 4712")
    held.release()
    disk.lock(tmp_path / "LOCK", "process 4712").release()


def test_a_new_directory_is_its_makers_alone_and_an_old_one_stays(disk: Disk, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir(mode=0o755)
    disk.make_dir(old)
    disk.make_dir(old / "new")
    assert stat.S_IMODE(old.stat().st_mode) == 0o755
    assert stat.S_IMODE((old / "new").stat().st_mode) == 0o700


def test_a_path_leads_to_a_place_that_moves_with_its_name(disk: Disk, tmp_path: Path) -> None:
    disk.make_dir(tmp_path / "a")
    place = disk.place_of(tmp_path / "a")
    disk.rename(tmp_path / "a", tmp_path / "b")
    assert disk.place_of(tmp_path / "a") is None
    disk.make_dir(tmp_path / "a")
    assert place is not None
    assert disk.place_of(tmp_path / "b") == place != disk.place_of(tmp_path / "a")
