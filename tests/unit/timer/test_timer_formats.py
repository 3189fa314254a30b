"""Golden files of the timer's formats: what was written once is read for ever, to the byte."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from tidemill.core.errors import CorruptionError, NewerFormatError
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import RealDisk
from tidemill.timer.cursor import CURSOR_FORMAT, CURSOR_NAME, Cursor, StoreMark, decode_cursor, encode_cursor
from tidemill.timer.dump import timer_reader
from tidemill.timer.ready_format import (
    READY_HEADER_BYTES,
    ReadyHeader,
    Runner,
    decode_ready,
    encode_ready,
)
from tidemill.timer.ready_row_format import READY
from tidemill.timer.settings import TimerSettings
from tidemill.timer.shard_header import decode_header, encode_header
from tidemill.timer.target import Target, decode_target, encode_target
from tidemill.timer.wheel.timer_log_format import (
    MAGIC_DEFAULT,
    MAGIC_ROLL,
    UNIT,
    SegmentLayout,
    encode_blank,
    slot_ticks_of,
    whole_count,
)
from tidemill.timer.wheel.wheel_format import SLOT, speaks_for

_GOLDEN = Path(__file__).parents[2] / "golden"
_SEGMENT_BYTES = 200


def golden_units():
    units = np.zeros(3, UNIT)
    units["size"] = 52
    units["prev_pos"] = [-1, 0, 1_000_000]
    units["magic"] = [MAGIC_DEFAULT, MAGIC_DEFAULT, MAGIC_DEFAULT | MAGIC_ROLL]
    units["enqueue_ms"] = 1_800_000_000_000
    units["delayed_ms"] = [1_000, 1_000, 172_799_000]
    units["offset"] = [0, 4_096, 1 << 40]
    units["message_size"] = [100, 4_194_304, 1]
    units["topic_hash"] = [0, 1, 4_000_000]
    units["seq"] = [7, 8, 1 << 45]
    return units


def golden_counted_units():
    units = golden_units()
    units["placements"] = [1, 0, 2434]
    return units


def golden_slots():
    slots = np.zeros(2, SLOT)
    slots["time"] = [1_800_000_001, 1_800_172_799]
    slots["first_pos"] = [0, 104]
    slots["last_pos"] = [52, 104]
    slots["num"] = [2, 1]
    return slots


GOLDEN_READY = (
    ReadyHeader(Runner.SPARK, shard=1, epoch=12, step=345, from_tick=1_800_000_000, until_tick=1_800_000_030),
    np.array([(1_800_000_001_500, 7), (1_800_000_001_500, 9), (1_800_000_029_999, 1 << 40)], READY),
    np.zeros(3, np.uint16),  # as it was written before rolls were counted
)
GOLDEN_ROLLED = (*GOLDEN_READY[:2], np.array([1, 0, 2434], np.uint16))
GOLDEN_PLAIN = (*GOLDEN_READY[:2], np.ones(3, np.uint16))
GOLDEN_CURSOR = Cursor(
    epoch=12,
    step=345,
    seq=1 << 40,
    tick=1_800_000_030,
    next_due_tick=1_800_000_030,
    resume_position=5_200,
    mark=StoreMark(
        log_end=104_857_652, wheel_synced=104_857_600, first_segment=1, segment_ticks=(1_800_172_799,)
    ),
)
GOLDEN_TARGET = Target(epoch=12, now_ms=1_800_000_000_123, synced_end_seq=1 << 40)


def golden_bytes() -> dict[str, bytes]:
    return {
        "timer-unit-1.bin": golden_units().tobytes() + encode_blank(_SEGMENT_BYTES),
        "timer-slot-1.bin": golden_slots().tobytes(),
        "timer-ready-1.bin": encode_ready(*GOLDEN_READY),
        "timer-ready-1-counted.bin": encode_ready(*GOLDEN_PLAIN),
        "timer-ready-2.bin": encode_ready(*GOLDEN_ROLLED),
        "timer-unit-1-counted.bin": golden_counted_units().tobytes(),
        "timer-cursor-1.bin": encode_cursor(GOLDEN_CURSOR),
        "timer-target-1.bin": encode_target(GOLDEN_TARGET),
        "timer-header-1.bin": encode_header(TimerSettings(tick_ms=200, shards=4), 3),
    }


@pytest.mark.parametrize("name", sorted(golden_bytes()))
def test_what_is_written_today_equals_the_golden_file(name):
    assert golden_bytes()[name] == (_GOLDEN / name).read_bytes()


def test_golden_units_decode():
    data = (_GOLDEN / "timer-unit-1.bin").read_bytes()
    units = np.frombuffer(data, UNIT, 3)
    assert (units == golden_units()).all()
    assert whole_count(np.frombuffer(data[: 52 * 3] + bytes(52), UNIT)) == 3
    assert slot_ticks_of(units, 1000).tolist() == [1_800_000_001, 1_800_000_001, 1_800_172_799]
    assert data[52 * 3 :].hex() == f"{_SEGMENT_BYTES - 156:08x}" + "00" * 8 + "cbd43194"
    assert units.tobytes() == data[: 52 * 3]


def test_golden_slots_decode():
    slots = np.frombuffer((_GOLDEN / "timer-slot-1.bin").read_bytes(), SLOT)
    assert (slots == golden_slots()).all()
    assert speaks_for(slots, np.array([1_800_000_001, 5])).tolist() == [True, False]


@pytest.mark.parametrize(
    ("name", "placements"),
    [
        ("timer-ready-1.bin", [0, 0, 0]),
        ("timer-ready-1-counted.bin", [1, 1, 1]),
        ("timer-ready-2.bin", [1, 0, 2434]),
    ],
)
def test_golden_ready_file_decodes_and_encodes_the_same(name, placements):
    data = (_GOLDEN / name).read_bytes()
    header, rows, told = decode_ready(data)
    assert (header, rows.tolist(), told.tolist()) == (GOLDEN_READY[0], GOLDEN_READY[1].tolist(), placements)
    assert encode_ready(header, rows, told) == data


@pytest.mark.parametrize("value", [3, 0x40, 0xFF])
def test_a_damaged_ready_file_is_not_taken_for_one_of_a_newer_version(value):
    data = bytearray((_GOLDEN / "timer-ready-1.bin").read_bytes())
    data[READY_HEADER_BYTES - 8] = value
    with pytest.raises(CorruptionError, match="checksum"):
        decode_ready(bytes(data))


def test_a_timer_unit_keeps_its_placements_in_the_half_of_magic_that_was_always_zero():
    units = np.frombuffer((_GOLDEN / "timer-unit-1-counted.bin").read_bytes(), UNIT)
    assert (units["placements"].tolist(), units["magic"].tolist()) == ([1, 0, 2434], [1, 1, 3])
    assert whole_count(units) == 3
    assert units[2].tobytes()[12:16] == bytes.fromhex("0982 0003")
    older = np.frombuffer((_GOLDEN / "timer-unit-1.bin").read_bytes(), UNIT, 3)
    assert older["placements"].tolist() == [0, 0, 0]


def test_golden_cursor_target_and_header_decode():
    assert decode_cursor((_GOLDEN / "timer-cursor-1.bin").read_bytes()) == GOLDEN_CURSOR
    assert decode_target((_GOLDEN / "timer-target-1.bin").read_bytes()) == GOLDEN_TARGET
    settings, shard = decode_header((_GOLDEN / "timer-header-1.bin").read_bytes())
    assert (settings.tick_ms, settings.shards, shard) == (200, 4, 3)


@pytest.mark.parametrize("at", [5, 9, 13, 20, 50, 70, 100])
def test_a_damaged_ready_file_is_reported(at):
    data = bytearray(encode_ready(*GOLDEN_READY))
    data[at] ^= 0xFF
    with pytest.raises((CorruptionError, NewerFormatError)):
        decode_ready(bytes(data))
    for whole in (GOLDEN_READY, GOLDEN_ROLLED):
        with pytest.raises(CorruptionError):
            decode_ready(bytes(encode_ready(*whole)[:-1]))


def test_a_ready_file_that_tells_more_than_is_known_is_refused():
    data = bytearray(encode_ready(*GOLDEN_PLAIN))
    data[56] = 3
    data[12:16] = bytes(4)
    data[12:16] = zlib.crc32(data).to_bytes(4, "little")
    with pytest.raises(NewerFormatError, match="newer"):
        decode_ready(bytes(data))


@pytest.mark.parametrize("at", range(36))
def test_a_damaged_target_is_reported(at):
    data = bytearray(encode_target(GOLDEN_TARGET))
    data[at] ^= 0x01
    with pytest.raises(CorruptionError):
        decode_target(bytes(data))


@pytest.mark.parametrize("segment_bytes", [128, 200, 1000, 104_857_600])
def test_positions_and_indexes_are_inverse(segment_bytes):
    layout = SegmentLayout(segment_bytes)
    indexes = np.arange(0, 5_000_000, 997)
    positions = layout.positions_of(indexes)
    assert (layout.indexes_at(positions) == indexes).all()
    assert (positions % segment_bytes + 52 + 16 <= segment_bytes).all()
    assert layout.position_of(997) == positions[1]
    assert layout.index_at(int(positions[1])) == 997
    assert (layout.positions_from(3, 50) == layout.positions_of(np.arange(3, 53))).all()
    assert layout.indexes_at(np.array([-1])).tolist() == [-1]


def test_the_default_segment_has_as_many_units_as_rocketmqs():
    assert SegmentLayout(100 * 1024 * 1024).units_per_segment == 2_016_492


def test_every_timer_file_can_be_dumped(tmp_path):
    disk = RealDisk()
    (tmp_path / "timer-log").mkdir()
    golden = golden_bytes()
    (tmp_path / "timer-log" / f"{0:020d}").write_bytes(golden["timer-unit-1.bin"])
    (tmp_path / "wheel").write_bytes(golden["timer-slot-1.bin"])
    (tmp_path / "001-0000000012-000000000345.ready").write_bytes(golden["timer-ready-1.bin"])
    (tmp_path / "target").write_bytes(golden["timer-target-1.bin"])
    Checkpoint(disk, tmp_path, CURSOR_NAME, CURSOR_FORMAT).save(golden["timer-cursor-1.bin"], sync=False)

    def dump(name):
        reader = timer_reader(tmp_path / name)
        assert reader is not None
        return list(reader((tmp_path / name).read_bytes()))

    assert [line["seq"] for line in dump(f"timer-log/{0:020d}")] == [7, 8, 1 << 45]
    assert [line["num"] for line in dump("wheel")] == [2, 1]
    assert dump("001-0000000012-000000000345.ready")[0]["runner"] == "spark"
    assert dump("cursor.1")[0]["tick"] == 1_800_000_030
    assert dump("target")[0]["epoch"] == 12
    assert timer_reader(tmp_path / "something") is None
