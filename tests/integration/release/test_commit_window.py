"""The window of release records under way: order, flow control, faults; alone and in a broker. No sleeps."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np
import pytest

from tidemill.core.errors import DiskFullError, StorageError, SyncFailedError
from tidemill.core.model import Draft
from tidemill.release.commit_window import CommitWindow
from tidemill.release.due_rows import due_rows
from tidemill.store.commit_log import Appended
from tidemill.testing import FaultPlan, SimulatedCrash

_PATIENCE_S = 120


class _Log:
    """Finishes records as a commit log does: each with all before it, when its gate is opened."""

    def __init__(self) -> None:
        self.gates: dict[int, threading.Event] = {}
        self.begun = threading.Semaphore(0)
        self.faults: dict[int, BaseException] = {}
        self.done: list[list[int]] = []
        self.troubled = threading.Event()

    def finish(self, appended: Appended) -> None:
        self.begun.release()
        if appended.end in self.gates:
            assert self.gates[appended.end].wait(_PATIENCE_S)
        if appended.end in self.faults:
            raise self.faults[appended.end]

    def gate(self, *ends: int) -> None:
        self.gates = {end: threading.Event() for end in ends}


@pytest.fixture
def log():
    return _Log()


@pytest.fixture
def make_window(log):
    made: list[CommitWindow] = []

    def make(size: int, *, has_pool: bool = True) -> CommitWindow:
        window = CommitWindow(
            size,
            log.finish,
            lambda record: log.done.append(record.rows["seq"].tolist()),
            has_pool=has_pool,
            on_trouble=log.troubled.set,
        )
        made.append(window)
        return window

    yield make
    for gate in log.gates.values():
        gate.set()
    for window in made:
        window.close()


def _put(window: CommitWindow, number: int, *, may_overlap: bool = True) -> None:
    rows = due_rows(np.array([0]), np.array([number]), 0, 1)
    appended, topic_ids = Appended(number * 10, number * 10 + 10, 0, 0), np.ones(len(rows), np.uint32)
    window.put(appended, rows, topic_ids, planned_s=0.0, may_overlap=may_overlap)


def test_a_window_of_one_finishes_each_record_before_the_next(make_window, log):
    window = make_window(1)
    for number in range(3):
        _put(window, number)
        assert (log.done[-1], window.count) == ([number], 0)


def test_records_overlap_up_to_the_window_and_then_the_oldest_is_waited_for(make_window, log):
    log.gate(10, 20, 30)
    window = make_window(3)
    _put(window, 0)
    _put(window, 1)
    for _ in range(2):
        assert log.begun.acquire(timeout=_PATIENCE_S)  # both are being synced, and no caller waited
    assert (window.count, log.done) == (2, [])
    assert window.seqs().tolist() == [0, 1]
    third = threading.Thread(target=_put, args=(window, 2))
    third.start()
    for _ in range(2):  # the third one's sync, and the releaser waiting for the first
        assert log.begun.acquire(timeout=_PATIENCE_S)
    assert (third.is_alive(), window.is_full) == (True, True)
    log.gates[10].set()
    third.join(_PATIENCE_S)
    assert (third.is_alive(), log.done, window.is_full) == (False, [[0]], False)


def test_a_record_that_is_safe_takes_those_before_it_along_in_order(make_window, log):
    log.gate(10, 20)
    window = make_window(8)
    for number in range(3):
        _put(window, number)
    window.drain()  # the third has no gate: a sync that covers it covers the others
    assert (log.done, window.count) == ([[0], [1], [2]], 0)


def test_what_does_not_press_is_finished_at_once(make_window, log):
    window = make_window(8)
    _put(window, 0, may_overlap=False)
    assert (log.done, window.count) == ([[0]], 0)


def test_without_a_pool_records_are_finished_when_the_window_is_full_and_when_the_step_ends(make_window, log):
    window = make_window(3, has_pool=False)
    _put(window, 0)
    _put(window, 1)
    assert (log.done, window.count) == ([], 2)
    _put(window, 2)
    assert (log.done, window.count) == ([[0]], 2)
    window.settle_step()
    assert (log.done, window.count) == ([[0], [1], [2]], 0)


@pytest.mark.parametrize("fault", [SyncFailedError("the disk said no"), DiskFullError("no space")])
def test_what_a_thread_could_not_finish_stays_and_meets_the_releaser(make_window, log, fault):
    log.faults[10] = fault
    window = make_window(8)
    _put(window, 0)
    assert log.troubled.wait(_PATIENCE_S)
    with pytest.raises(type(fault)):
        window.resume()
    assert (log.done, window.count) == ([], 1)
    with pytest.raises(type(fault)):
        window.resume()
    log.faults.clear()
    window.resume()
    assert (log.done, window.count) == ([[0]], 0)


def test_what_the_releaser_itself_could_not_finish_is_tried_again_in_its_next_step(make_window, log):
    log.faults[20] = StorageError("Input/output error")
    window = make_window(8)
    with pytest.raises(StorageError):
        _put(window, 1, may_overlap=False)
    with pytest.raises(StorageError):
        window.resume()
    log.faults.clear()
    window.resume()
    assert (log.done, window.count) == ([[1]], 0)


# -- in a broker ----------------------------------------------------------------------------------


def _numbers(small) -> list[int]:
    return [int(row.body) for row in small.in_topic("t")]


def _waiting(make_small, commits_in_flight: int):
    small = make_small(queues_per_topic=1, release_rows_max=1, commits_in_flight=commits_in_flight)
    small.broker.send([Draft("t", b"%d" % number, level=1) for number in range(10)])
    small.clock.advance(5_000)
    small.disk.arm(FaultPlan())
    return small


@pytest.mark.parametrize(("commits_in_flight", "syncs"), [(1, 10), (2, 5), (4, 3), (8, 2), (64, 1)])
def test_records_share_syncs_and_keep_their_order(make_small, commits_in_flight, syncs):
    small = _waiting(make_small, commits_in_flight)
    small.broker._release_service.run_once()
    assert _numbers(small) == list(range(10))
    assert small.disk.sync_count == syncs
    assert small.broker.status().lateness_ms.count == 10


@pytest.mark.parametrize("commits_in_flight", [1, 4, 64])
def test_a_failed_sync_shows_nothing_that_a_power_cut_could_take_back(make_small, commits_in_flight):
    small = _waiting(make_small, commits_in_flight)
    small.disk.arm(FaultPlan(fail_sync_at=1))
    for _ in range(2):
        with pytest.raises(SyncFailedError):
            small.broker._release_service.run_once()
    assert _numbers(small) == []
    small.kill_and_open(power_cut=True)
    small.advance(0)
    assert _numbers(small) == list(range(10))


@pytest.mark.parametrize("commits_in_flight", [2, 8])
@pytest.mark.parametrize("power_cut", [False, True])
def test_a_crash_anywhere_between_append_and_queue_loses_and_doubles_nothing(
    make_small, commits_in_flight, power_cut
):
    met: Counter[bool] = Counter()
    for crash_at in range(1, 60, 7):
        small = _waiting(make_small, commits_in_flight)
        small.disk.arm(FaultPlan(crash_at=crash_at, crash_after=True, count_writes=True))
        try:
            small.broker._release_service.run_once()
            met[False] += 1
        except SimulatedCrash:
            met[True] += 1
        small.kill_and_open(power_cut=power_cut)
        small.advance(0)
        assert _numbers(small) == list(range(10))
    assert met[True] > 3


def test_a_ready_file_stays_until_the_records_of_its_rows_are_safe(make_small, monkeypatch):
    small = make_small(queues_per_topic=1, release_rows_max=1, commits_in_flight=8)
    small.broker.send([Draft("t", b"%d" % number, delay_ms=40_000) for number in range(3)])
    small.advance(39_000)
    ready = sorted(small.directory.glob("timer/*/ready/*"))
    assert ready
    monkeypatch.setattr(small.broker.releaser._window, "settle_step", lambda: None)  # as with a pool
    small.clock.advance(1_000)
    small.broker._release_service.run_once()
    assert small.broker.releaser._window.count == 3
    assert sorted(small.directory.glob("timer/*/ready/*")) == ready
    small.broker._release_service.run_once()  # a new step finishes them
    assert not list(small.directory.glob("timer/*/ready/*"))
    assert _numbers(small) == [0, 1, 2]
