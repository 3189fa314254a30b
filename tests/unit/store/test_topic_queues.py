"""Topic queues: rows by offset, visible in order, cut at the head, gone with their topic."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.store_parts import base_at, lone_queues
from tidemill.store import topic_queues as module
from tidemill.store.formats.queue_format import QUEUE_ROW
from tidemill.store.topic_queues import Publication
from tidemill.testing import FaultPlan, FaultyDisk

CHUNK_ROWS = 8


@pytest.fixture
def queues(tmp_path):
    queues = lone_queues(FaultyDisk(1), tmp_path / "queues", CHUNK_ROWS)
    yield queues
    queues.close()


def _publish(queues, queue, first, count, *, place=100, released_at_ms=0):
    rows = np.zeros(count, QUEUE_ROW)
    rows["place"] = (np.arange(count, dtype=np.uint64) + np.uint64(place)) << np.uint64(16)
    rows["seq"] = np.arange(first, first + count)
    rows["released_at_ms"] = released_at_ms
    queues.publish(Publication(0, [queue], [first], [count], rows))


def test_rows_are_visible_once_published_and_never_beyond_the_end(queues):
    assert queues.end((1, 0)) == 0
    _publish(queues, (1, 0), 0, 5)
    assert queues.read((1, 0), 2, 99)["seq"].tolist() == [2, 3, 4]
    assert len(queues.read((1, 0), 5, 9)) == 0
    assert len(queues.read((2, 0), 0, 9)) == 0
    _publish(queues, (1, 0), 5, 20)
    assert queues.read((1, 0), 0, 99)["seq"].tolist() == list(range(25))


def test_a_replay_writes_the_same_rows_again_and_takes_nothing_back(queues):
    _publish(queues, (1, 0), 0, 10)
    _publish(queues, (1, 0), 2, 3)
    assert queues.end((1, 0)) == 10
    assert queues.read((1, 0), 0, 10)["seq"].tolist() == list(range(10))


def test_rows_below_the_head_read_as_expired_and_whole_files_of_them_go(queues, tmp_path):
    _publish(queues, (1, 0), 0, 30)
    queues.cut_head(base_at({1: [20]}))
    assert queues.head((1, 0)) == 20
    rows = queues.read((1, 0), 18, 22)
    assert rows["place"].tolist() == [0, 0, 120 << 16, 121 << 16]
    assert queues.read((1, 0), 3, 5)["place"].tolist() == [0, 0]
    assert queues.read((1, 0), 20, 30)["seq"].tolist() == list(range(20, 30))
    assert len(list((tmp_path / "queues" / "1" / "0").iterdir())) == 2


def test_the_first_live_row_is_the_first_whose_bytes_are_still_in_the_log(queues):
    _publish(queues, (1, 0), 0, 30)
    assert queues.first_live((1, 0), 0) == 0
    assert queues.first_live((1, 0), 117) == 17
    queues.cut_head(base_at({1: [17]}))
    assert queues.first_live((1, 0), 117) == 17
    assert queues.first_live((1, 0), 10_000) == 30
    assert queues.first_live((9, 9), 5) == 0


def test_an_offset_is_found_by_time(queues):
    for i in range(20):
        _publish(queues, (1, 0), i, 1, released_at_ms=100 * (i // 2))
    assert [queues.offset_at_time((1, 0), at) for at in (0, 1, 100, 101, 900, 901)] == [0, 2, 2, 4, 18, 20]
    queues.cut_head(base_at({1: [9]}))
    assert queues.offset_at_time((1, 0), 0) == 9


def test_a_deleted_topic_takes_its_queues_along_and_no_other(queues, tmp_path):
    for queue in ((1, 0), (1, 1), (2, 0)):
        _publish(queues, queue, 0, 3)
    queues.forget(1)
    assert queues.ends() == {(2, 0): 3}
    assert not (tmp_path / "queues" / "1").exists()
    assert queues.read((2, 0), 0, 9)["seq"].tolist() == [0, 1, 2]


def test_more_queues_than_open_files_lose_nothing(queues, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_OPEN_TABLES_MAX", 3)
    for turn in range(3):
        for queue_id in range(8):
            _publish(queues, (1, queue_id), 2 * turn, 2)
    queues.sync()
    for queue_id in range(8):
        assert queues.read((1, queue_id), 0, 9)["seq"].tolist() == list(range(6))
    queues.close()
    again = lone_queues(FaultyDisk(1), tmp_path / "queues", CHUNK_ROWS)
    again.set_end((1, 5), 6)
    assert again.read((1, 5), 0, 9)["seq"].tolist() == list(range(6))
    again.close()


def test_several_queues_of_one_publication_get_their_own_rows(queues):
    rows = np.zeros(5, QUEUE_ROW)
    rows["seq"] = [7, 8, 1, 2, 3]
    queues.publish(Publication(0, [(1, 1), (1, 0)], [0, 0], [2, 3], rows))
    assert queues.read((1, 1), 0, 9)["seq"].tolist() == [7, 8]
    assert queues.read((1, 0), 0, 9)["seq"].tolist() == [1, 2, 3]


def test_with_more_queues_than_open_tables_a_release_syncs_nothing_a_checkpoint_all(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_OPEN_TABLES_MAX", 3)
    for seed in range(10):
        disk = FaultyDisk(seed)
        queues = lone_queues(disk, tmp_path / str(seed), CHUNK_ROWS)
        disk.arm(FaultPlan())
        for first in (0, 5):
            for queue_id in range(10):
                _publish(queues, (1, queue_id), first, 5 if first == 0 else 20)
        assert disk.sync_count == 0
        queues.sync()
        assert disk.sync_count >= 10 * 4  # every chunk of every queue
        disk = disk.crash(power_cut=True)
        again = lone_queues(disk, tmp_path / str(seed), CHUNK_ROWS)
        for queue_id in range(10):
            again.set_end((1, queue_id), 25)
            assert again.read((1, queue_id), 0, 25)["seq"].tolist() == list(range(25))
        again.close()
