"""Runs of the find index that are damaged on disk: verified, derived again from the log, never trusted."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from helpers.small_broker import SmallBroker
from tidemill.core.errors import BusyError
from tidemill.core.model import Draft
from tidemill.log.disk import RealDisk
from tidemill.store.damage import Derived, Repairs
from tidemill.store.find.find_files import RunFile
from tidemill.store.find.find_index import FindIndex
from tidemill.store.formats.find_format import RUN_HEADER_BYTES

HOUR_MS = 3_600_000


@pytest.fixture
def small(tmp_path):
    """Two runs that are too unlike in size to be merged, and pairs in memory."""
    small = SmallBroker(tmp_path / "data", queues_per_topic=1)
    for first, count in ((0, 60), (60, 20), (80, 2)):
        numbers = range(first, first + count)
        drafts = [Draft("t", b"%d" % i, delay_ms=HOUR_MS, keys=(f"k{i}",)) for i in numbers]
        small.broker.send([*drafts, Draft("t", b"now %d" % first, id=f"now-{first}")])
        small.broker.store.checkpoint()
    yield small
    small.check()
    small.close()


def runs(small) -> list[Path]:
    found = sorted((small.directory / "index" / "find").glob("*.run"))
    assert len(found) == 2
    return found


def flip(path: Path, at: int) -> None:
    content = path.read_bytes()
    fd = os.open(path, os.O_WRONLY)  # in place: the running broker has it mapped
    os.pwrite(fd, bytes([content[at] ^ 4]), at)
    os.close(fd)


def repaired(small) -> int:
    return small.broker.store.repairs.counts()[Derived.FIND]


def all_are_found(small) -> bool:
    return [small.broker.store.seqs_with_key(1, f"k{i}") for i in range(82)] == [[i] for i in range(82)]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("at", [0, 5, 9, 17, 25, 33, 37, RUN_HEADER_BYTES, -9, -1])
def test_a_flipped_bit_anywhere_in_a_run_is_found_when_it_is_opened(small, which, at) -> None:
    small.kill()
    path = runs(small)[which]
    flip(path, at % path.stat().st_size)
    small.open()
    assert repaired(small) == 1
    assert all_are_found(small)
    assert small.broker.store.places_with_id(1, "now-0")


def test_only_the_part_of_a_damaged_run_is_derived_again(small) -> None:
    before = {path.name: path.stat().st_ino for path in runs(small)}
    small.kill()
    flip(runs(small)[0], 200)
    small.open()
    after = {path.name: path.stat().st_ino for path in runs(small)}
    assert after.keys() == before.keys()
    assert [after[name] == before[name] for name in sorted(after)] == [False, True]


def test_a_missing_run_is_derived_again(small) -> None:
    small.kill()
    runs(small)[0].unlink()
    small.open()
    assert len(runs(small)) == 2
    assert all_are_found(small)


def test_the_scrub_finds_damage_under_a_running_broker(small, caplog) -> None:
    flip(runs(small)[0], runs(small)[0].stat().st_size // 2)
    store, steps = small.broker.store, 0
    while not repaired(small) and steps < 500:
        steps += 1
        store.look_after_find(scrub_bytes=64)
    assert steps > 10, "one step is bounded"
    assert repaired(small) == 1
    assert not store.find.lost
    assert all_are_found(small)
    assert [record.getMessage() for record in caplog.records if "find" in record.getMessage()] == [
        f"{runs(small)[0]}: damage in this run of the find index; derived again from the commit log"
    ]


def test_the_scrub_goes_on_from_file_to_file_and_begins_again(small) -> None:
    store = small.broker.store
    for _ in range(7):
        assert not store.look_after_find()
    flip(runs(small)[1], 50)
    store.look_after_find()
    store.look_after_find()
    assert repaired(small) == 1


def test_a_lookup_is_refused_while_a_part_is_lost(small) -> None:
    find = small.broker.store.find
    with small.broker.store.writer.lock:
        find.lose(find.files[0])
    with pytest.raises(BusyError, match="retry in a few seconds"):
        small.broker.cancel_where("t", key="k3")
    with pytest.raises(BusyError):
        small.broker.send([Draft("t", b"again", id="now-0")])
    small.broker.store.look_after_find()
    assert small.broker.cancel_where("t", key="k3") == 1
    assert small.broker.cancel_where("t", key="k3") == 0


def test_a_lost_part_is_derived_in_bounded_steps(small, monkeypatch) -> None:
    monkeypatch.setattr("tidemill.store.find.find_upkeep._DERIVE_BYTES", 1)
    for i in range(3):
        small.broker.send([Draft("t", b"more", delay_ms=HOUR_MS, keys=(f"more-{i}",)) for _ in range(90)])
    small.broker.store.checkpoint()
    find = small.broker.store.find
    file = find.files[-1]
    with small.broker.store.writer.lock:
        find.lose(file)
    steps = 1
    while small.broker.store.look_after_find():
        steps += 1
    assert steps > 2
    assert small.broker.cancel_where("t", key="more-1") == 90
    assert find.files[-1].end_offset == file.end_offset


def test_a_cut_head_shortens_what_is_lost(tmp_path) -> None:
    find = _find_of(tmp_path, [[5], [6]])
    find.lose(find.files[0])
    find.cut_head(100)
    assert not find.lost
    find.lose(find.files[0])
    find.cut_head(150)
    assert [(part.first_offset, part.end_offset) for part in find.lost] == [(150, 200)]


@pytest.mark.parametrize("which", [0, 1])
def test_what_is_damaged_is_not_merged(tmp_path, which) -> None:
    find = _find_of(tmp_path, [[5, 7], [6, 8]])
    pair = find.mergeable()
    assert pair is not None
    flip(pair[which].path, RUN_HEADER_BYTES + 3)
    assert find.write_merged(pair) == [pair[which]]
    assert len(list(tmp_path.glob("*.run"))) == 2


def test_two_runs_with_a_lost_part_between_them_are_not_merged(tmp_path) -> None:
    find = _find_of(tmp_path, [[5], [6], [7]])
    find.lose(find.files[1])
    assert find.mergeable() is None
    written = find.regain((np.array([6], np.uint64), np.array([0], np.uint64)), 100, 200)
    find.end_regain(written)
    assert find.mergeable() is not None
    assert find.find(6).tolist() == [0]


def test_a_merged_run_that_is_damaged_leaves_the_two_it_was_made_of(tmp_path) -> None:
    find = _find_of(tmp_path, [[5, 7], [6, 8]])
    pair = find.mergeable()
    merged = find.write_merged(pair)
    assert isinstance(merged, RunFile)
    flip(merged.path, RUN_HEADER_BYTES + 3)
    again = FindIndex(RealDisk(), tmp_path, Repairs())
    again.open(0)
    assert again.covers == 200
    assert not again.lost
    assert again.has_any(np.array([8], np.uint64))


def test_a_file_under_the_name_of_another_is_dropped(tmp_path) -> None:
    find = _find_of(tmp_path, [[5], [6]])
    first, second = (file.path for file in find.files)
    second.write_bytes(first.read_bytes())
    again = FindIndex(RealDisk(), tmp_path, Repairs())
    again.open(0)
    assert again.covers == 100
    assert again.find(5).tolist() == [0]


def _find_of(directory: Path, parts: list[list[int]]) -> FindIndex:
    find = FindIndex(RealDisk(), directory, Repairs())
    find.open(0)
    for number, hashes in enumerate(parts):
        find.add(np.array(hashes, np.uint64), np.arange(len(hashes), dtype=np.uint64))
        find.begin_flush(100 * (number + 1))
        find.end_flush(find.write_flushing())
    return find
