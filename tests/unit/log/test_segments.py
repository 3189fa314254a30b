"""The segmented log: rolling, recovering, cutting, full disks."""

from __future__ import annotations

import itertools
from contextlib import suppress

import pytest

from tidemill.core.errors import CorruptionError, DiskFullError
from tidemill.log.frame import frame_bytes
from tidemill.log.segments import SegmentedLog
from tidemill.testing import FaultPlan, FaultyDisk, SimulatedCrash

SEGMENT = 8192


class SmallLog:
    """A log of segments of two pages, opened and opened again."""

    def __init__(self, directory, **faults) -> None:
        self.directory = directory
        self.disk = FaultyDisk(1, **faults)
        self.frames: list[tuple[int, bytes]] = []
        self.log = self.open()

    def open(self, known_synced_end: int = 0) -> SegmentedLog:
        self.log = SegmentedLog(
            self.disk, self.directory, segment_bytes=SEGMENT, opening=lambda at: (1, b"at %d" % at)
        )
        self.frames = [(f.kind, bytes(f.payload)) for f in self.log.recover(0, known_synced_end)]
        return self.log

    def reopen(self, *, power_cut: bool = False, known_synced_end: int = 0) -> SegmentedLog:
        self.disk = self.disk.crash(power_cut=power_cut)
        return self.open(known_synced_end)

    def append(self, payload: bytes, *, reserved: bool = False) -> int:
        return self.log.append(2, [payload], 5, reserved=reserved)

    def payloads(self) -> list[bytes]:
        return [payload for kind, payload in self.frames if kind == 2]

    def path(self, start: int = 0):
        return self.directory / f"{start:020d}.log"

    def damage(self, offset: int, start: int = 0) -> bytes:
        """Change one byte of a segment file behind the log's back; the bytes after it."""
        self.disk = self.disk.crash(power_cut=False)
        whole = bytearray(self.path(start).read_bytes())
        whole[offset - start] ^= 0xFF
        self.path(start).write_bytes(whole)
        return bytes(whole)


@pytest.fixture
def small(tmp_path):
    return SmallLog(tmp_path / "log")


def test_what_was_appended_is_there_after_opening_again(small):
    offsets = [small.append(b"%d" % i) for i in range(5)]
    assert offsets == sorted(set(offsets))
    assert bytes(small.log.frame(offsets[3]).payload) == b"3"
    small.reopen()
    assert small.payloads() == [b"%d" % i for i in range(5)]
    assert small.log.synced_end == small.log.written_end


def test_a_payload_in_parts_small_and_large_is_one_frame(small):
    large = bytes(range(256)) * 300
    at = small.log.append(2, [b"a", memoryview(large), bytearray(b"b")], 7)
    frame = small.log.frame(at)
    assert bytes(frame.payload) == b"a" + large + b"b"
    assert frame.stamp_ms == 7
    small.reopen()
    assert small.payloads() == [b"a" + large + b"b"]


def test_every_segment_opens_with_the_owners_frame_and_they_lie_end_to_end(small):
    for i in range(30):
        small.append(b"%04d" % i * 250)
    starts = small.log.segment_starts()
    assert len(starts) > 3
    assert [bytes(small.log.frame(start).payload) for start in starts] == [
        b"at %d" % start for start in starts
    ]
    end = small.log.written_end
    small.reopen()
    assert small.payloads() == [b"%04d" % i * 250 for i in range(30)]
    assert (small.log.segment_starts(), small.log.written_end) == (starts, end)
    sizes = [small.path(start).stat().st_size for start in starts[:-1]]
    assert [start + size for start, size in zip(starts, sizes, strict=False)] == starts[1:]


def test_a_frame_larger_than_a_segment_gets_one_of_its_own(small):
    small.append(b"before")
    at = small.append(bytes(3 * SEGMENT))
    small.append(b"after")
    starts = small.log.segment_starts()
    assert len(starts) == 3
    assert at == starts[1] + frame_bytes(len(b"at %d" % starts[1]))
    small.reopen()
    assert small.payloads() == [b"before", bytes(3 * SEGMENT), b"after"]


def test_a_torn_tail_is_cut_and_its_bytes_never_come_back(small):
    small.append(b"kept")
    small.log.sync()
    torn = small.append(b"torn" * 10)
    small.append(b"behind the torn one")
    small.damage(torn + 45)
    small.open(known_synced_end=torn)
    assert small.payloads() == [b"kept"]
    assert small.log.written_end == torn
    assert small.path().read_bytes()[torn:] == bytes(SEGMENT - torn)
    # A frame as long as the torn one ends where the stale one behind it began.
    small.append(b"new!" * 10)
    small.reopen()
    assert small.payloads() == [b"kept", b"new!" * 10]


def test_a_bad_frame_below_what_was_safe_is_corruption_and_changes_nothing(small):
    small.append(b"first")
    bad = small.append(b"second")
    small.log.sync()
    small.append(b"third, which knows that the second was safe")
    broken = small.damage(bad + 41)
    with pytest.raises(
        CorruptionError, match=rf"offset {bad} does not read back, but the log was safe up to"
    ):
        small.open()
    assert small.path().read_bytes() == broken
    assert small.disk.names(small.directory) == [f"{0:020d}.log", "spare"]


def test_a_bad_last_frame_that_the_owner_knows_to_be_safe_is_corruption(small):
    bad = small.append(b"last")
    small.log.sync()
    end = small.log.written_end
    small.damage(bad + 41)
    with pytest.raises(CorruptionError, match=f"safe up to {end}"):
        small.open(known_synced_end=end)


def test_a_missing_segment_in_the_middle_is_corruption_and_changes_nothing(small):
    for _ in range(12):
        small.append(bytes(2_000))
        small.log.sync()
    starts = small.log.segment_starts()
    small.disk = small.disk.crash(power_cut=False)
    small.path(starts[1]).unlink()
    small.disk = FaultyDisk(2)
    before = small.disk.names(small.directory)
    with pytest.raises(CorruptionError, match="does not read back, but the log was safe"):
        small.open()
    assert small.disk.names(small.directory) == before


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_missing_first_segment_does_not_pass_for_a_cut_head(small, is_cut):
    for _ in range(12):
        small.append(bytes(2_000))
        small.log.sync()
    starts = small.log.segment_starts()
    if is_cut:
        small.log.cut_head(starts[1])
    small.disk = small.disk.crash(power_cut=False)
    small.path(starts[1] if is_cut else starts[0]).unlink()
    small.disk = FaultyDisk(2)
    with pytest.raises(CorruptionError, match="its first file begins at"):
        small.open()


def test_a_head_cut_that_was_broken_off_is_finished_at_the_next_opening(small):
    for _ in range(12):
        small.append(bytes(2_000))
    starts = small.log.segment_starts()
    small.log._head_record.save(starts[2])
    small.reopen()
    assert small.log.segment_starts() == starts[2:]


def test_all_segments_missing_is_corruption_if_something_was_safe(small):
    small.append(b"x")
    small.log.sync()
    end = small.log.written_end
    small.disk = small.disk.crash(power_cut=False)
    small.path().unlink()
    small.disk = FaultyDisk(2)
    with pytest.raises(CorruptionError, match="missing or short"):
        small.open(known_synced_end=end)


def test_a_segment_that_was_just_begun_goes_with_its_torn_opening_frame(small):
    while len(small.log.segment_starts()) < 2:
        small.append(bytes(2_000))
    start = small.log.segment_starts()[-1]
    small.damage(start + 3, start)
    small.open()
    assert small.log.written_end == start
    assert small.log.segment_starts() == [0]
    small.append(b"again")
    small.reopen()
    assert small.payloads()[-1] == b"again"


def test_what_was_synced_survives_every_power_cut(tmp_path):
    for seed in range(30):
        small = SmallLog(tmp_path / str(seed))
        small.disk._faults.random.seed(seed)
        for i in range(6):
            small.append(b"%d" % i * 1_000)
        small.log.sync()
        safe = small.log.synced_end
        for i in range(6, 12):
            small.append(b"%d" % i * 1_000)
        small.reopen(power_cut=True, known_synced_end=safe)
        payloads = small.payloads()
        assert payloads == [b"%d" % i * 1_000 for i in range(len(payloads))]
        assert len(payloads) >= 6


# -- space ----------------------------------------------------------------------------------------


def test_a_full_disk_refuses_normal_appends_and_lets_reserved_ones_go_on(small):
    small.append(b"makes the spare")
    small.disk.capacity_bytes = small.disk.allocated_bytes(small.directory)
    fitting = (SEGMENT - small.log.written_end) // frame_bytes(1_000)
    for _ in range(fitting):
        small.append(bytes(1_000))
    end = small.log.written_end
    with pytest.raises(DiskFullError):
        small.append(bytes(1_000))
    assert small.log.written_end == end
    small.append(bytes(1_000), reserved=True)
    assert "spare" not in small.disk.names(small.directory)
    with pytest.raises(DiskFullError):
        small.append(b"there is no spare now, so even a small one is refused")
    small.append(bytes(1_000), reserved=True)
    count = len(list(small.log.frames(0, small.log.written_end)))
    small.disk.capacity_bytes = None
    small.append(b"room again")
    assert "spare" in small.disk.names(small.directory)
    small.reopen()
    assert len(small.frames) == count + 1


def test_when_the_spare_is_used_up_reserved_appends_ask_for_room(tmp_path):
    small = SmallLog(tmp_path / "log")
    small.append(b"makes the spare")
    small.disk.capacity_bytes = small.disk.allocated_bytes(small.directory)
    asked = []

    def make_room() -> bool:
        asked.append(1)
        small.disk.capacity_bytes += SEGMENT // 2
        return True

    small.log.pool._make_room = make_room
    for _ in range(16):
        small.append(bytes(1_000), reserved=True)
    assert len(small.log.segment_starts()) == 3
    assert len(asked) == 2


def test_a_full_disk_at_opening_is_no_obstacle(small):
    small.append(b"x")
    small.disk.capacity_bytes = 0
    small.reopen()
    assert small.payloads() == [b"x"]
    with pytest.raises(DiskFullError):
        small.append(b"y")
    small.disk.capacity_bytes = None
    small.append(b"y")
    small.reopen()
    assert small.payloads() == [b"x", b"y"]


# -- the head -------------------------------------------------------------------------------------


def test_the_head_goes_by_whole_segments_and_the_last_one_stays(small):
    for _ in range(12):
        small.append(bytes(2_000))
    starts = small.log.segment_starts()
    assert small.log.cut_head(starts[2] - 1) == starts[1]
    assert small.log.cut_head(1 << 40) == starts[-1]
    end = small.log.written_end
    small.reopen()
    assert (small.log.head, small.log.written_end) == (starts[-1], end)
    small.append(b"x")


def test_a_power_cut_while_the_head_is_cut_leaves_no_hole(tmp_path):
    for seed in range(20):
        small = SmallLog(tmp_path / str(seed))
        small.disk._faults.random.seed(seed)
        for _ in range(12):
            small.append(bytes(2_000))
        small.log.sync()
        end = small.log.written_end
        small.log.cut_head(small.log.segment_starts()[2])
        small.reopen(power_cut=True, known_synced_end=end)
        assert small.log.written_end == end


def test_killed_in_a_head_cut_and_then_a_power_cut_leaves_no_hole(tmp_path):
    was_broken_off = False
    for crash_at, seed in itertools.product(range(1, 5), range(8)):
        small = SmallLog(tmp_path / f"{crash_at}-{seed}")
        for _ in range(12):
            small.append(bytes(2_000))
        small.log.sync()
        starts, end = small.log.segment_starts(), small.log.written_end
        small.disk.arm(FaultPlan(crash_at=crash_at, crash_after=True, count_writes=True))
        with suppress(SimulatedCrash):
            small.log.cut_head(starts[2])
        small.reopen(known_synced_end=end)  # finishes the cut by a record that is perhaps not safe
        was_broken_off = was_broken_off or small.log.head == 0
        small.disk._faults.random.seed(seed)
        small.reopen(power_cut=True, known_synced_end=end)
        assert (small.log.head in (0, starts[2]), small.log.written_end) == (True, end)
    assert was_broken_off


def test_reading_below_the_written_end_checks_every_frame(small):
    small.append(b"a")
    at = small.append(b"b")
    assert [f.kind for f in small.log.frames(0, small.log.written_end)] == [1, 2, 2]
    with small.path().open("r+b") as file:
        file.seek(at + 40)
        file.write(b"!")
    with pytest.raises(CorruptionError, match=f"offset {at}"):
        list(small.log.frames(0, small.log.written_end))
    with pytest.raises(CorruptionError, match=f"offset {at + 8} of the log .byte {at + 8}"):
        small.log.frame(at + 8)


def test_small_frames_are_written_over_room_that_was_written_before(tmp_path, monkeypatch) -> None:
    """Zeros go before the frames, never over them, and nowhere outside the segment."""
    monkeypatch.setattr("tidemill.log.segments._AHEAD_BYTES", 256)
    small = SmallLog(tmp_path / "log")
    writes: list[tuple[int, bytes]] = []
    payloads = [bytes([number]) * (number % 90) for number in range(1, 200)]
    small.append(payloads[0])
    file_type = type(small.log._segments[-1].file)
    write = file_type.write

    def watched(file, offset: int, data) -> None:
        writes.append((offset, bytes(data)))
        assert offset + len(data) <= max(SEGMENT, file.size())
        write(file, offset, data)

    monkeypatch.setattr(file_type, "write", watched)
    for payload in payloads[1:]:
        small.append(payload)
    zeros = [data for _, data in writes if data and not any(data)]
    assert 10 < len(zeros) < len(payloads) / 2
    small.log.sync()
    small.reopen(power_cut=True)
    assert small.payloads() == payloads
