"""Commits in flight with real threads, in real time, on a disk with slow syncs. Judges order, never speed."""

from __future__ import annotations

import threading

import pytest

from tidemill.broker.broker import Broker, Sizes
from tidemill.cli.bench.levels import SlowDisk
from tidemill.core.config import BrokerSettings
from tidemill.core.errors import BrokerClosedError, SyncFailedError
from tidemill.core.model import Draft

_PATIENCE_S = 120


class _Disk(SlowDisk):
    """Counts how many syncs of the log are under way at once; may fail them."""

    def __init__(self) -> None:
        super().__init__(5)
        self._count_lock = threading.Lock()
        self.under_way = self.most = 0
        self.fails = False

    def _pause(self, begun_s: float) -> None:
        with self._count_lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        super()._pause(begun_s)
        with self._count_lock:
            self.under_way -= 1
        if self.fails:
            raise SyncFailedError("the disk said no")


def _broker(tmp_path, disk, commits_in_flight, **sizes):
    settings = BrokerSettings(queues_per_topic=1, commits_in_flight=commits_in_flight, levels="1s 2s")
    return Broker(tmp_path / "data", settings, disk=disk, sizes=Sizes(**sizes))


def _bodies(broker, count):
    """Bodies in the topic's queue, when there are `count` of them."""
    notifier = broker.store.notifier
    queue = (broker.topics.require("t").id, 0)
    for _ in range(_PATIENCE_S * 10):
        known = notifier.count
        if broker.store.queues.end(queue) >= count:
            break
        notifier.wait(known, 100)
    return [int(row.message.body) for row in broker.views.read("t", 0, 0, 1 << 30)]


def _use_until_closed(broker):
    for _ in range(_PATIENCE_S * 10):
        broker.require_open()
        threading.Event().wait(0.1)


@pytest.mark.parametrize(("commits_in_flight", "has_overlap"), [(1, False), (8, True)])
def test_releases_overlap_in_a_window_and_stay_in_order(tmp_path, commits_in_flight, has_overlap):
    disk = _Disk()
    with _broker(tmp_path, disk, commits_in_flight, release_rows_max=1) as broker:
        broker.send([Draft("t", b"%d" % number, level=1) for number in range(60)])
        disk.most = 0
        assert _bodies(broker, 60) == list(range(60))
        assert broker.check(tmp_path / "scratch") == []
    lateness = broker.releaser.lateness.summary()  # of all records, now that no thread is at work
    assert (lateness.count, lateness.min_ms >= 0) == (60, True)
    assert not has_overlap or disk.most > 1


def test_closing_with_records_under_way_makes_all_of_them_safe(tmp_path):
    with _broker(tmp_path, _Disk(), 8, release_rows_max=1) as broker:
        broker.send([Draft("t", b"%d" % number, delay_ms=number // 4) for number in range(60)])
        came = _bodies(broker, 5)
    with _broker(tmp_path, SlowDisk(0), 8) as broker:
        assert _bodies(broker, 60) == list(range(60))
        assert came == list(range(len(came)))
        assert broker.check(tmp_path / "scratch") == []


def test_a_sync_that_fails_in_a_thread_of_the_window_stops_the_broker(tmp_path):
    disk = _Disk()
    broker = _broker(tmp_path, disk, 8, release_rows_max=1)
    try:
        broker.send([Draft("t", b"%d" % number, level=1) for number in range(30)])
        disk.fails = True
        with pytest.raises(BrokerClosedError):
            _use_until_closed(broker)
        shown = [int(row.message.body) for row in broker.views.read("t", 0, 0, 100)]
    finally:
        disk.fails = False
        broker.close()
    with _broker(tmp_path, SlowDisk(0), 8) as broker:
        assert _bodies(broker, 30) == list(range(30))
        assert shown == list(range(len(shown)))
