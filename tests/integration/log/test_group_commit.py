"""Group commit: one sync for all that wait, some in flight, none after a failure. No sleeps: barriers."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tidemill.core.errors import SyncFailedError
from tidemill.log.disk import RealDisk
from tidemill.log.group_commit import GroupCommit
from tidemill.log.segments import SegmentedLog


class GatedFile:
    """A file whose syncs wait at a gate that the test opens, or each at a gate of its own."""

    def __init__(self, real, disk) -> None:
        self._real = real
        self._disk = disk

    def __getattr__(self, name):
        return getattr(self._real, name)

    def sync(self) -> None:
        if self._disk.own_gates:
            self._disk.own_gates.pop(0)()
        elif self._disk.is_gated:
            self._disk.arrived.release()
            assert self._disk.gate.acquire(timeout=20)
        with self._disk.count_lock:
            self._disk.sync_count += 1
            fails = self._disk.fails
        if fails:
            raise SyncFailedError("the disk said no")
        self._real.sync()


class GatedDisk(RealDisk):
    def __init__(self) -> None:
        self.is_gated = self.fails = False
        self.arrived, self.gate = threading.Semaphore(0), threading.Semaphore(0)
        self.count_lock = threading.Lock()
        self.sync_count = 0
        self.own_gates = []  # called one per sync, in the order the syncs begin

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
        except SyncFailedError:
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
    # The twenty may have begun to wait before or after that sync began; never one sync each.
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


def test_after_a_failed_sync_every_waiter_fails_and_nothing_is_acknowledged(log, disk):
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
    with pytest.raises(SyncFailedError):
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
    with pytest.raises(SyncFailedError):
        commit.wait_synced(_append(log))
    with pytest.raises(SyncFailedError):
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


class OwnGate:
    """The gate of one sync: it may end before an earlier one, and it may fail."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.arrived, self.opened = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.arrived.set()
        assert self.opened.wait(120)
        if self.fails:
            raise SyncFailedError("the disk said no")


def _two_syncs(log, disk, *, first_fails=False):
    """Two that overlap, the second over before the first."""
    commit = GroupCommit(log, in_flight_max=4)
    waiters = Waiters(commit)
    gates = [OwnGate(fails=first_fails), OwnGate()]
    disk.own_gates = list(gates)
    for gate in gates:
        waiters.add(_append(log))
        assert gate.arrived.wait(120)
    ended = threading.Semaphore(0)
    end_of = log._syncs.end

    def end(sync, *, is_safe):
        ended.release()
        return end_of(sync, is_safe=is_safe)

    log._syncs.end = end
    gates[1].opened.set()
    assert ended.acquire(timeout=120)
    return commit, waiters, gates


def test_a_sync_is_believed_when_those_that_began_before_it_have_succeeded(log, disk):
    safe = log.synced_end
    commit, waiters, gates = _two_syncs(log, disk)
    with log._sync_lock:
        assert (log.synced_end, commit.acknowledged_end, waiters.done) == (safe, safe, [])
    gates[0].opened.set()
    waiters.join()
    assert len(waiters.done) == 2
    assert log.synced_end == log.written_end


def test_a_sync_that_succeeds_beside_one_that_fails_is_not_believed(log, disk):
    """The operating system tells a failed write to one of them only."""
    safe = log.synced_end
    _, waiters, gates = _two_syncs(log, disk, first_fails=True)
    gates[0].opened.set()
    waiters.join()
    assert (waiters.done, len(waiters.failed), log.synced_end) == ([], 2, safe)


def test_a_segment_is_not_closed_under_a_sync_that_is_about_to_ask_for_it(log, disk):
    commit = GroupCommit(log, in_flight_max=4)
    waiters = Waiters(commit)
    while len(log.segment_starts()) < 3:
        log.append(2, [bytes(2_000)], 0)
    gates = [OwnGate(), OwnGate()]
    disk.own_gates = list(gates)
    waiters.add(log.written_end)
    assert gates[0].arrived.wait(120)
    waiters.add(_append(log))
    assert gates[1].arrived.wait(120)  # it has yet to sync the first segment
    gates[0].opened.set()
    commit.wait(log.segment_starts()[-1])
    log.cut_head(log.segment_starts()[-1])
    gates[1].opened.set()
    waiters.join()
    assert (len(waiters.done), waiters.failed) == (2, [])
