"""Golden files beside the commit log: entries, queues, consumers, index checkpoint, find runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from helpers.store_parts import lone_indexes
from tidemill.core.model import TopicType, Via
from tidemill.log.disk import RealDisk
from tidemill.log.frame import decode_frame
from tidemill.log.segments import SegmentedLog
from tidemill.store.consumers.consumer_log import KIND_CHANGES
from tidemill.store.consumers.consumer_state import (
    ACT_CHANGE,
    ACT_CURSOR,
    ACT_SETTLE,
    ACT_SKIP,
    ACT_TAKE,
    CHANGE,
    ConsumerState,
)
from tidemill.store.damage import Derived, Repairs
from tidemill.store.find.find_index import FindIndex
from tidemill.store.find.find_runs import PLACE_BIT
from tidemill.store.formats.entry_format import ENTRY, FLAG_FIFO, FLAG_LEVEL, FLAG_MOVED, FLAG_NEAR
from tidemill.store.formats.find_format import (
    RUN_HEADER_BYTES,
    RunHeader,
    decode_run_header,
    encode_run_header,
)
from tidemill.store.formats.queue_format import QUEUE_ROW
from tidemill.store.formats.row_check import salts_of, seal, sealed_mask
from tidemill.store.index_checkpoint import note_indexes, restore_indexes
from tidemill.store.indexes import Indexes
from tidemill.store.ledger import State
from tidemill.store.open_transactions import OpenHalf
from tidemill.store.topics import Topic

GOLDEN = Path(__file__).parents[2] / "golden"
NOW_MS = 1_800_000_000_000


def _entries():
    rows = [
        (1 << 16 | 2, NOW_MS + 5, NOW_MS, 0x0123456789ABCDEF, 160, 3, 1, FLAG_NEAR | FLAG_FIFO, 0, 0),
        (
            1 << 40 | 65_535,
            NOW_MS + 3650 * 86_400_000,
            NOW_MS,
            (1 << 64) - 1,
            1 << 22,
            70_000,
            1023,
            FLAG_LEVEL,
            18,
            0,
        ),
        (9 << 16, NOW_MS, NOW_MS - 1, 7, 60, 1, 0, FLAG_MOVED, 0, 0),
    ]
    entries = np.array(rows, ENTRY)
    seal(entries, salts_of(np.arange(41, 44)))
    return entries


def _queue_rows():
    rows = np.zeros(2, QUEUE_ROW)
    rows["place"], rows["seq"] = [1 << 16 | 2, 9 << 16], [41, -1]
    rows["released_at_ms"], rows["deliver_at_ms"] = [NOW_MS, NOW_MS + 1], [NOW_MS - 1, -1]
    rows["via"] = [Via.EMBEDDED, Via.DIRECT]
    seal(rows, salts_of(np.arange(5, 7), 3 << 16 | 1))
    return rows


def _changes():
    rows = [
        (ACT_CURSOR, 0, 1, 2, 3, 0, 5, 0),
        (ACT_TAKE, 0, 1, 2, 3, 1, 5, NOW_MS),
        (ACT_TAKE, 0, 1, 2, 3, 1, 6, NOW_MS),
        (ACT_TAKE, 0, 1, 2, 3, 4, 7, NOW_MS),
        (ACT_SETTLE, 0, 1, 2, 3, 1, 6, 0),
        (ACT_CHANGE, 0, 1, 2, 3, 4, 7, NOW_MS + 30_000),
        (ACT_SKIP, 0, 1, 2, 3, 0, 6, 0),
    ]
    return np.array(rows, CHANGE)


def _change_frame(directory: Path) -> bytes:
    """A consumer log's frame of changes, at the offset where it stands in a new log."""
    log = SegmentedLog(RealDisk(), directory, segment_bytes=4096, opening=lambda _: (1, b""))
    list(log.recover(0, 0))
    at = log.append(KIND_CHANGES, [_changes().tobytes()], NOW_MS)
    end = log.written_end
    log.close()
    return (directory / f"{0:020d}.log").read_bytes()[at:end]


def _indexes(directory: Path) -> Indexes:
    indexes = lone_indexes(directory)
    indexes.topics.put(Topic(1, "orders", TopicType.MIXED, 2))
    indexes.topics.set_offsets(1, [7, 8])
    indexes.ledger.grow(6)
    indexes.ledger.settle(np.array([1, 4]), State.RELEASED)
    indexes.ledger.settle(np.array([2]), State.CANCELLED)
    indexes.ledger.settle(np.array([3]), State.MOVED)
    indexes.due_counts.add(np.array([1, 1], np.uint32), np.array([NOW_MS, NOW_MS + 90_000]), 1)
    indexes.totals.count_sent(np.array([1] * 6))
    indexes.near_floor, indexes.level_floor = 5, 6
    indexes.open_transactions.open(OpenHalf(9 << 16, 1, "half", NOW_MS))
    return indexes


def _find_run() -> bytes:
    hashes, refs = np.array([1, 5, 5, 1 << 63], "<u8"), np.array([0, 3, 9 << 16, 4], "<u8")
    refs[2] |= PLACE_BIT
    return encode_run_header(RunHeader(4, 128, 4096), (hashes, refs)) + hashes.tobytes() + refs.tobytes()


def golden_bytes(directory: Path) -> dict[str, bytes]:
    return {
        "store-entry-2.bin": _entries().tobytes(),
        "store-queue-row-2.bin": _queue_rows().tobytes(),
        "consumers-change-1.bin": _change_frame(directory / "consumers"),
        "store-index-checkpoint-1.bin": b"".join(note_indexes(_indexes(directory / "index"), 4096).encode()),
        "store-find-run-2.bin": _find_run(),
    }


NAMES = [
    "consumers-change-1",
    "store-entry-2",
    "store-find-run-2",
    "store-index-checkpoint-1",
    "store-queue-row-2",
]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_today_equals_the_golden_file(tmp_path, name):
    assert golden_bytes(tmp_path)[f"{name}.bin"] == (GOLDEN / f"{name}.bin").read_bytes()


def test_golden_rows_read_back():
    entries = np.frombuffer((GOLDEN / "store-entry-2.bin").read_bytes(), ENTRY)
    assert (entries == _entries()).all()
    assert entries["deliver_at_ms"].tolist() == [NOW_MS + 5, NOW_MS + 3650 * 86_400_000, NOW_MS]
    rows = np.frombuffer((GOLDEN / "store-queue-row-2.bin").read_bytes(), QUEUE_ROW)
    assert (rows == _queue_rows()).all()
    assert rows["seq"].tolist() == [41, -1]
    assert rows["placements"].tolist() == [0, 0]  # written before rolls were counted
    assert sealed_mask(entries, salts_of(np.arange(41, 44))).all()
    assert sealed_mask(rows, salts_of(np.arange(5, 7), 3 << 16 | 1)).all()


def test_golden_rows_of_format_1_have_no_check():
    entries = np.frombuffer((GOLDEN / "store-entry-1.bin").read_bytes(), ENTRY)
    assert not sealed_mask(entries, salts_of(np.arange(41, 44))).any()
    rows = np.frombuffer((GOLDEN / "store-queue-row-1.bin").read_bytes(), QUEUE_ROW)
    assert not sealed_mask(rows, salts_of(np.arange(5, 7), 3 << 16 | 1)).any()


def test_a_golden_frame_of_changes_gives_the_state_it_was_made_for():
    data = np.frombuffer((GOLDEN / "consumers-change-1.bin").read_bytes(), np.uint8)
    frame = decode_frame(data, 0, 40, verify=True)
    assert frame is not None
    assert frame.kind == KIND_CHANGES
    state = ConsumerState()
    state.apply(np.frombuffer(frame.payload, CHANGE))
    assert state.as_dict()["lanes"] == [[2, 3, 1, 8, [[7, 4, NOW_MS + 30_000]], 0]]


def test_a_checkpoint_of_consumers_from_before_resets_were_counted_is_read():
    saved = json.loads('{"groups": [], "lanes": [[2, 3, 1, 8, [[7, 4, 99]]]]}')
    state = ConsumerState.from_dict(saved)
    progress = state.progress((2, 3, 1))
    assert progress is not None
    assert (progress.next_offset, progress.taken, progress.resets) == (8, {7: (4, 99)}, 0)


def test_a_golden_index_checkpoint_restores_the_state_it_was_made_for(tmp_path):
    restored = lone_indexes(tmp_path / "restored")
    content = (GOLDEN / "store-index-checkpoint-1.bin").read_bytes()
    assert restore_indexes(restored, content) == 4096
    expected = _indexes(tmp_path / "expected")
    assert restored.base() == expected.base()
    assert restored.ledger.range_states(0, 6).tolist() == expected.ledger.range_states(0, 6).tolist()
    assert restored.due_counts.encode() == expected.due_counts.encode()
    assert (restored.near_floor, restored.level_floor) == (5, 6)
    assert restored.open_transactions == expected.open_transactions


def test_a_golden_find_run_is_found_in(tmp_path):
    content = (GOLDEN / "store-find-run-2.bin").read_bytes()
    assert decode_run_header(content[:RUN_HEADER_BYTES], len(content)) == RunHeader(4, 128, 4096)
    (tmp_path / f"{128:020d}-{4096:020d}.run").write_bytes(content)
    find = FindIndex(RealDisk(), tmp_path, Repairs())
    find.open(128)
    assert find.covers == 4096
    assert find.find(5).tolist() == [3, 9 << 16 | 1 << 63]
    assert find.find(1 << 63).tolist() == [4]
    assert find.find(2).tolist() == []


def test_a_golden_find_run_of_format_1_is_dropped_and_is_no_damage(tmp_path):
    repairs = Repairs()
    content = (GOLDEN / "store-find-run-1.bin").read_bytes()
    (tmp_path / f"{128:020d}-{4096:020d}.run").write_bytes(content)
    find = FindIndex(RealDisk(), tmp_path, repairs)
    find.open(128)
    assert find.covers == 128
    assert list(tmp_path.iterdir()) == []
    assert repairs.counts()[Derived.FIND] == 0
