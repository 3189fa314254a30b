"""Group commit: one sync for all that wait, some in flight, none after a failure. No sleeps: barriers."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tidemill.core.errors import SyncFailed
from tidemill.log.disk import RealDisk
from tidemill.log.group_commit import GroupCommit
from tidemill.log.segments import SegmentedLog


class GatedFile:
    """A file whose syncs wait at a gate that the test opens."""

    def __init__(self, real, disk) -> None:
        self._real = real
        self._disk = disk

    def __getattr__(self, name):
        return getattr(self._real, name)

    def sync(self) -> None:
        if self._disk.is_gated:
            self._disk.arrived.release()
            assert self._disk.gate.acquire(timeout=20)
        with self._disk.count_lock:
            self._disk.sync_count += 1
            fails = self._disk.fails
        if fails:
            raise SyncFailed("the disk said no")
        self._real.sync()


class GatedDisk(RealDisk):
    def __init__(self) -> None:
        self.is_gated = self.fails = False
        self.arrived, self.gate = threading.Semaphore(0), threading.Semaphore(0)
        self.count_lock = threading.Lock()
        self.sync_count = 0

    def open(self, path: Path, *, create: bool = False):
        return GatedFile(super().open(path, create=create), self)


@pytest.fixture
def disk():
    return GatedDisk()


@pytest.fixture
def log(disk, tmp_path):
    log = SegmentedLog(disk, tmp_path, segment_bytes=8192, opening=lambda _: (1, b""))
    list(log.recover(0, 0))
    log.append(2, [b"first"], 0)
    log.sync()
    disk.sync_count = 0
    yield log
    log.close()


def _append(log) -> int:
    log.append(2, [b"x"], 0)
    return log.written_end


class Waiters:
    """Threads that each wait for an end, in the order they finished."""

    def __init__(self, commit) -> None:
        self.commit = commit
        self.done: list[int] = []
        self.failed: list[int] = []
        self._threads: list[threading.Thread] = []

    def add(self, end: int) -> None:
        thread = threading.Thread(target=self._wait, args=(end,))
        self._threads.append(thread)
        thread.start()

    def _wait(self, end: int) -> None:
        try:
            self.commit.wait(end)
            self.done.append(end)
        except SyncFailed:
            self.failed.append(end)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()


def test_waiting_makes_the_log_safe_and_waiting_again_costs_nothing(log, disk):
    commit = GroupCommit(log)
    end = _append(log)
    assert commit.acknowledged_end < end
    commit.wait(end)
    assert (log.synced_end, commit.acknowledged_end, disk.sync_count) == (end, end, 1)
    commit.wait(end)
    assert disk.sync_count == 1


def test_all_that_wait_while_one_sync_is_under_way_share_the_next(log, disk):
    commit = GroupCommit(log, in_flight_max=1)
    waiters = Waiters(commit)
    disk.is_gated = True
    waiters.add(_append(log))
    assert disk.arrived.acquire(timeout=20)  # the leader is at the disk
    later = [_append(log) for _ in range(20)]
    for end in later:
        waiters.add(end)
    disk.gate.release()
    assert disk.arrived.acquire(timeout=20)  # one of the twenty leads for all
    disk.gate.release(30)
    waiters.join()
    assert len(waiters.done) == 21
    # The twenty may have come to the waiting room before or after that lead began; never one sync each.
    assert disk.sync_count <= 3
    assert log.synced_end == later[-1]


@pytest.mark.parametrize("in_flight_max", [1, 2, 4])
def test_no_more_syncs_are_under_way_than_allowed(log, disk, in_flight_max):
    commit = GroupCommit(log, in_flight_max=in_flight_max)
    waiters = Waiters(commit)
    disk.is_gated = True
    for _ in range(in_flight_max):
        waiters.add(_append(log))
        assert disk.arrived.acquire(timeout=20)  # its sync is under way before the next is appended
    waiters.add(_append(log))
    assert not disk.arrived.acquire(timeout=0.05), "one sync too many"
    disk.is_gated = False
    disk.gate.release(50)
    waiters.join()
    assert len(waiters.done) == in_flight_max + 1


def test_who_is_covered_by_a_sync_under_way_starts_none(log, disk):
    commit = GroupCommit(log, in_flight_max=4)
    waiters = Waiters(commit)
    disk.is_gated = True
    ends = [_append(log) for _ in range(5)]
    waiters.add(ends[-1])
    assert disk.arrived.acquire(timeout=20)
    for end in ends[:-1]:
        waiters.add(end)
    assert not disk.arrived.acquire(timeout=0.05)
    disk.gate.release(10)
    waiters.join()
    assert disk.sync_count == 1


def test_after_a_failed_sync_everyone_is_told_and_nothing_is_acknowledged(log, disk):
    commit = GroupCommit(log, in_flight_max=1)
    waiters = Waiters(commit)
    safe = log.synced_end
    disk.is_gated = disk.fails = True
    ends = [_append(log) for _ in range(3)]
    for end in ends:
        waiters.add(end)
    assert disk.arrived.acquire(timeout=20)
    disk.gate.release(10)
    waiters.join()
    assert (waiters.done, sorted(waiters.failed)) == ([], ends)
    disk.is_gated = disk.fails = False
    with pytest.raises(SyncFailed):
        commit.wait(ends[0])
    assert commit.acknowledged_end == safe


def test_async_durability_acknowledges_what_is_written_until_a_sync_fails(log, disk):
    commit = GroupCommit(log, is_sync=False)
    end = _append(log)
    commit.wait(end)
    assert (commit.acknowledged_end, disk.sync_count) == (end, 0)
    commit.wait_synced(end)
    assert (log.synced_end, disk.sync_count) == (end, 1)
    disk.fails = True
    with pytest.raises(SyncFailed):
        commit.wait_synced(_append(log))
    with pytest.raises(SyncFailed):
        commit.wait(end)


def test_segments_that_were_begun_between_two_syncs_are_all_synced(log, disk):
    commit = GroupCommit(log)
    for _ in range(12):
        log.append(2, [bytes(2_000)], 0)
    segments = len(log.segment_starts())
    assert segments > 3
    commit.wait(log.written_end)
    assert disk.sync_count == segments
    commit.wait(_append(log))
    assert disk.sync_count == segments + 1
