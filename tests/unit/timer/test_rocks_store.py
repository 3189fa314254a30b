"""What only the RocksDB store does: its own cursor, steps that did not end, damage, drained keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.timer_harness import SMALL, ShardHarness, WatchedEngine, rocks_keys_on_disk
from tidemill.core.errors import CorruptionError, DiskFullError
from tidemill.log.disk import RealDisk
from tidemill.timer.check import check_timer
from tidemill.timer.cursor import encode_cursor
from tidemill.timer.rocksdb import rocks_store
from tidemill.timer.rocksdb.rocks_format import (
    KEY_BYTES,
    NO_KEY,
    TIMER_KEY,
    decode_note,
    encode_note,
    timer_keys,
)
from tidemill.timer.settings import StepLimits, StoreKind
from tidemill.timer.stages.admit import new_batch

START = 1_000
ROCKS = replace(SMALL, store=StoreKind.ROCKSDB)


def test_keys_sort_by_due_time_and_hold_topic_id_and_seq(rocks_shard):
    shard = rocks_shard
    shard.run(START)
    shard.add((START + 9) * 1000, (START + 4) * 1000 + 5, (START + 4) * 1000 + 4)
    shard.run(START)
    found = rocks_keys_on_disk(shard)
    entries = shard.entries.rows(0, 3)
    assert found["seq"].tolist() == [2, 1, 0]
    assert found["due_ms"].tolist() == entries["deliver_at_ms"][::-1].tolist()
    assert found["id_hash"].tolist() == entries["id_hash"][::-1].tolist()
    assert found["topic_id"].tolist() == entries["topic_id"][::-1].tolist()


def test_a_key_is_what_the_format_says():
    batch = ShardHarness(Path("unused")).entries
    batch.add([0x0102030405])
    keys = timer_keys(new_batch(np.array([7]), batch.rows(0, 1)))
    assert keys.tobytes() == bytes.fromhex("0000000102030405 00000000 0000000000000000 0000000000000007")


def test_nothing_is_rolled_however_far_it_is(rocks_shard):
    shard = rocks_shard
    shard.run(START)
    shard.add((START + 10_000_000) * 1000)
    shard.run(START + 1)
    before = rocks_keys_on_disk(shard).tolist()
    shard.run(START + 9_999_999)
    assert rocks_keys_on_disk(shard).tolist() == before
    assert len(shard.run(START + 10_000_001)) == 1


def test_the_stores_own_cursor_counts_where_its_file_is_behind(rocks_shard, monkeypatch):
    shard = rocks_shard
    shard.run(START)
    shard.add((START + 1) * 1000, (START + 5) * 1000)
    engine = shard.engines[0]

    def full(*_args, **_more):
        raise DiskFullError("no space")

    with monkeypatch.context() as patched:
        patched.setattr(engine._checkpoint, "save", full)
        with pytest.raises(DiskFullError):
            shard.step(START + 3)
    assert [seq for _, seq in shard.collect()] == [0]
    behind = engine.cursor
    assert check_timer(shard.disk, shard.directory, is_crashed=True) == []
    assert check_timer(shard.disk, shard.directory) == [
        f"shard-000: the cursor's file is behind RocksDB: step {behind.step}, not {behind.step + 1}"
    ]
    shard.reopen()
    assert shard.engines[0].cursor.tick == START + 3
    shard.check()  # opening has brought the file up to it
    assert [seq for _, seq in shard.run(START + 9)] == [1]


def test_keys_of_a_step_that_did_not_end_are_not_handed_over(rocks_shard, monkeypatch):
    shard = rocks_shard
    monkeypatch.setattr("tidemill.log.sorted_keys._SLICE_KEYS", 2)
    shard.run(START)
    shard.add(*[(START + 2) * 1000 + n for n in range(3)])
    shard.run(START)
    shard.add(*[(START + 3) * 1000 + n for n in range(7)])
    keys = shard.engines[0]._store._opened
    done, put = [], keys._put

    def dies_in_the_middle(rows, note):
        if len(done) == 2:
            raise DiskFullError("no space")
        done.append(len(rows))
        put(rows, note)

    with monkeypatch.context() as patched:
        patched.setattr(keys, "_put", dies_in_the_middle)
        with pytest.raises(DiskFullError):
            shard.step(START)
    assert len(rocks_keys_on_disk(shard)) == 3 + 4
    shard.check()
    # Time goes on, but the rest is not absorbed yet: what was left of it must not be handed over.
    assert shard.step(START + 5, seq=3).work.handed_over == 3
    assert shard.engines[0].cursor.next_due_tick is None
    shard.check()
    shard.collect()
    assert [seq for _, seq in shard.run(START + 5)] == list(range(3, 10))


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*", "*.sst", "*.log"])
def test_damaged_files_are_noticed_and_the_shard_is_built_again(rocks_shard, name):
    shard = rocks_shard
    shard.run(START)
    shard.add(*[(START + n) * 1000 for n in range(2, 30)])
    shard.run(START + 3)
    shard.close()  # writes a table
    damaged = [path for path in (shard.directory / "shard-000" / "rocksdb").glob(name) if path.stat().st_size]
    for path in damaged:
        path.write_bytes(b"x" * path.stat().st_size)
    assert damaged or name == "*.log"
    WatchedEngine.rebuild_count = 0
    shard.open(start_seq=0)
    shard.run(START + 40)
    assert {seq for _, seq in shard.handed} == set(range(28))
    assert WatchedEngine.rebuild_count == bool(damaged)


def test_options_that_name_what_does_not_exist_are_damage(tmp_path):
    RealDisk().sorted_keys(tmp_path / "keys", 8).close()
    (options,) = (tmp_path / "keys").glob("OPTIONS-*")
    section = b"[TableOptions/BlockBasedTable"
    assert section in options.read_bytes()
    options.write_bytes(options.read_bytes().replace(section, b"[TableOptions/BlockBas\0dTable"))
    with pytest.raises(CorruptionError, match="delete the timer directory"):
        RealDisk().sorted_keys(tmp_path / "keys", 8)


def test_a_scan_over_a_damaged_block_does_not_just_end(tmp_path):
    keys = RealDisk().sorted_keys(tmp_path / "keys", 8)
    rows = np.arange(200_000, dtype=">u8")
    keys.write(rows, b"note")
    keys.close()
    for table in (tmp_path / "keys").glob("*.sst"):
        whole = bytearray(table.read_bytes())
        middle = len(whole) // 2
        whole[middle : middle + 64] = b"x" * 64
        table.write_bytes(whole)
    keys = RealDisk().sorted_keys(tmp_path / "keys", 8)
    with pytest.raises(CorruptionError):
        keys.scan(b"", b"\xff", 1 << 30)
    keys.close()


def test_drained_keys_are_dropped_in_bulk(rocks_shard, monkeypatch):
    shard = rocks_shard
    monkeypatch.setattr(rocks_store, "_DRAINED_KEYS_MAX", 10)
    shard.run(START)
    for tick in range(START, START + 30):
        shard.add(*[(tick + 2) * 1000 + n for n in range(4)])
        shard.run(tick)
        shard.check()
    assert len(rocks_keys_on_disk(shard)) <= 3 * 4 + 10 + 4
    shard.reopen()
    shard.run(START + 40)
    assert sorted(shard.handed) == shard.expect(START + 40)


def test_a_lost_directory_is_built_again(rocks_shard):
    shard = rocks_shard
    shard.run(START)
    shard.add((START + 5) * 1000)
    shard.run(START)
    shard.close()
    shard.disk.remove_tree(shard.directory / "shard-000" / "rocksdb")
    shard.open(start_seq=0)
    assert [seq for _, seq in shard.run(START + 9)] == [0]


def test_the_note_holds_cursor_and_last_key(rocks_shard):
    shard = rocks_shard
    shard.run(START)
    shard.add(*[(START + 2) * 1000 + n for n in range(20)])
    shard.run(START)
    shard.limits = StepLimits(due_max=6)
    shard.step(START + 5)
    cursor = shard.engines[0].cursor
    assert cursor.is_inside_slot
    assert cursor.resume_position == 5
    note = shard.engines[0]._store._opened.note()
    assert decode_note(note)[0] == cursor
    assert np.frombuffer(decode_note(note)[1], TIMER_KEY)["seq"].tolist() == [5]
    assert encode_note(cursor, NO_KEY)[:80] == encode_cursor(cursor)[:80]


def test_check_finds_what_is_wrong(tmp_path):
    shard = ShardHarness(tmp_path / "timer", ROCKS).open()
    shard.run(START)
    shard.add(*[(START + 3 + n) * 1000 for n in range(4)])
    shard.run(START)
    shard.close()
    keys = RealDisk().sorted_keys(tmp_path / "timer" / "shard-000" / "rocksdb", KEY_BYTES)
    cursor, _ = decode_note(keys.note())
    twice = timer_keys(new_batch(np.array([2]), shard.entries.rows(2, 3)))
    twice["due_ms"] -= 3_000
    keys.write(twice, encode_note(replace(cursor, step=cursor.step + 2), bytes(27) + b"x"))
    keys.close()
    findings = " ".join(check_timer(RealDisk(), shard.directory))
    for finding in ("file is behind", "a slot was begun", "the next due tick is", "waits twice"):
        assert finding in findings
