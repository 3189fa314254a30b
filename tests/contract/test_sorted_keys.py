"""What sorted keys promise, checked on the real disk and on the faulty one alike."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tidemill.core.errors import (
    CorruptionError,
    DirectoryLockedError,
    DiskFullError,
    RequestError,
    SyncFailedError,
)
from tidemill.log.disk import Disk, RealDisk
from tidemill.testing import FaultPlan, FaultyDisk, SimulatedCrash

ALL = (b"", b"\xff")


@pytest.fixture(params=["real", "faulty"])
def disk(request: pytest.FixtureRequest) -> Iterator[Disk]:
    if request.param == "real":
        yield RealDisk()
        return
    with FaultyDisk(seed=1) as faulty:
        yield faulty


def _rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, ">u8")


def _numbers(rows: np.ndarray) -> list[int]:
    return rows.view(">u8").tolist()


def test_keys_come_back_in_order_and_once(disk: Disk, tmp_path: Path) -> None:
    keys = disk.sorted_keys(tmp_path / "k", 8)
    assert keys.note() is None
    keys.write(_rows(5, 1, 900), b"one")
    keys.write(_rows(7, 5), b"two")
    assert _numbers(keys.scan(*ALL, 100)) == [1, 5, 7, 900]
    assert keys.note() == b"two"
    keys.close()


def test_a_scan_keeps_to_its_range_and_its_count(disk: Disk, tmp_path: Path) -> None:
    keys = disk.sorted_keys(tmp_path / "k", 8)
    keys.write(_rows(*range(10_000)), b"")
    first, end = _rows(3).tobytes(), _rows(9_000).tobytes()
    assert _numbers(keys.scan(first, end, 1 << 20)) == list(range(3, 9_000))
    assert _numbers(keys.scan(first, end, 5_000)) == list(range(3, 5_003))
    assert _numbers(keys.scan(first + b"\0", end, 1)) == [4]
    assert _numbers(keys.scan(end, end, 5)) == []
    assert _numbers(keys.scan(first, end, 0)) == []
    keys.close()


def test_dropped_keys_are_gone_and_others_stay(disk: Disk, tmp_path: Path) -> None:
    keys = disk.sorted_keys(tmp_path / "k", 8)
    keys.write(_rows(1, 2, 3, 4), b"n")
    keys.drop(b"", _rows(3).tobytes())
    assert _numbers(keys.scan(*ALL, 9)) == [3, 4]
    assert keys.note() == b"n"
    keys.close()


def test_opening_again_finds_everything(disk: Disk, tmp_path: Path) -> None:
    keys = disk.sorted_keys(tmp_path / "k", 8)
    keys.write(_rows(*range(9_000)), b"kept")
    keys.close()
    keys = disk.sorted_keys(tmp_path / "k", 8)
    assert len(keys.scan(*ALL, 1 << 20)) == 9_000
    assert keys.note() == b"kept"
    keys.close()


def test_one_may_write_while_others_look(disk: Disk, tmp_path: Path) -> None:
    keys = disk.sorted_keys(tmp_path / "k", 8)
    keys.write(_rows(8), b"n")
    with pytest.raises(DirectoryLockedError):
        disk.sorted_keys(tmp_path / "k", 8)
    looking = disk.sorted_keys(tmp_path / "k", 8, read_only=True)
    assert _numbers(looking.scan(*ALL, 9)) == [8]
    looking.close()
    keys.close()


def test_keys_of_another_width_are_refused(disk: Disk, tmp_path: Path) -> None:
    keys = disk.sorted_keys(tmp_path / "k", 8)
    keys.write(_rows(8), b"n")
    keys.close()
    keys = disk.sorted_keys(tmp_path / "k", 5)
    with pytest.raises(CorruptionError, match="another width"):
        keys.scan(*ALL, 9)
    keys.close()


def test_without_rocksdict_the_error_says_what_to_install(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(RequestError, match=r"install tidemill\[rocksdb\], or choose --timer-store wheel"):
        disk.sorted_keys(tmp_path / "k", 8)


class _ComplainsAtClose:
    """A database whose last upkeep fails, and which is closed all the same."""

    def __init__(self, db: object, complaint: str) -> None:
        self._db = db
        self._complaint = complaint

    def close(self) -> None:
        self._db.close()
        raise Exception(self._complaint)


@pytest.mark.parametrize(
    "complaint",
    [
        "IO error: No space left on device: While appending to file",
        "Corruption: block checksum mismatch in 000009.sst offset 0 size 54",
    ],
)
def test_closing_on_a_full_or_damaged_disk_lets_go_and_loses_nothing(tmp_path: Path, complaint: str) -> None:
    keys = RealDisk().sorted_keys(tmp_path / "k", 8)
    keys.write(_rows(1, 2), b"note")
    keys._db = _ComplainsAtClose(keys._db, complaint)
    keys.close()
    keys.close()
    again = RealDisk().sorted_keys(tmp_path / "k", 8)
    assert (_numbers(again.scan(*ALL, 9)), again.note()) == ([1, 2], b"note")
    again.close()


@pytest.mark.parametrize("name", ["MANIFEST-*", "*.log"])
def test_a_record_that_its_reader_would_never_end_on_is_damage(disk: Disk, tmp_path: Path, name: str) -> None:
    keys = disk.sorted_keys(tmp_path / "k", 8)
    keys.write(_rows(1, 2), b"note")
    left = tmp_path / "left"
    shutil.copytree(tmp_path / "k", left)
    keys.close()
    (path,) = left.glob(name)
    content = bytearray(path.read_bytes())
    content[4:7] = b"\x02\x0a\x05"  # longer than the file, and of a file that is used again
    path.write_bytes(content)
    with pytest.raises(CorruptionError, match=r"the record at byte 0 is damaged; delete the timer directory"):
        disk.sorted_keys(left, 8)


# What only the faulty one can show: the promises about crashes.


@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("crash_after", [False, True])
def test_a_crash_at_any_point_leaves_the_old_note_or_the_new_one_with_all_keys(
    tmp_path: Path, power_cut: bool, crash_after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.log.sorted_keys._SLICE_KEYS", 3)
    outcomes = set()
    for crash_at in range(1, 7):
        disk = FaultyDisk(seed=crash_at)
        keys = disk.sorted_keys(tmp_path / f"k{crash_at}", 8)
        keys.write(_rows(1, 2), b"old")
        disk.arm(FaultPlan(crash_at=crash_at, crash_after=crash_after, count_writes=True))
        has_returned = False
        try:
            keys.write(_rows(*range(10, 20)), b"new")
            has_returned = True
        except SimulatedCrash:
            pass
        disk = disk.crash(power_cut=power_cut)
        found = disk.sorted_keys(tmp_path / f"k{crash_at}", 8)
        rows = _numbers(found.scan(*ALL, 99))
        note = found.note()
        outcomes.add(note)
        assert rows[:2] == [1, 2]
        assert rows == [1, 2, *range(10, 10 + len(rows) - 2)]
        assert note == b"old" or len(rows) == 12
        assert note == b"new" or not has_returned
        disk.close()
    assert outcomes == {b"old", b"new"}


def test_a_full_disk_and_a_failed_sync_are_said(tmp_path: Path) -> None:
    with FaultyDisk(seed=1) as disk:
        keys = disk.sorted_keys(tmp_path / "k", 8)
        disk.capacity_bytes = 0
        with pytest.raises(DiskFullError):
            keys.write(_rows(1), b"n")
        disk.capacity_bytes = None
        disk.arm(FaultPlan(fail_sync_at=1))
        with pytest.raises(SyncFailedError):
            keys.write(_rows(1), b"n")


def test_a_dead_process_changes_nothing_any_more(tmp_path: Path) -> None:
    disk = FaultyDisk(seed=1)
    keys = disk.sorted_keys(tmp_path / "k", 8)
    heir = disk.crash(power_cut=False)
    with pytest.raises(SimulatedCrash):
        keys.write(_rows(1), b"n")
    keys.close()
    assert len(heir.sorted_keys(tmp_path / "k", 8).scan(*ALL, 9)) == 0
    heir.close()
