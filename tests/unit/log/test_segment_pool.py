"""The segment pool: what several frames need is set aside before the first; spare files hold only zeros."""

from __future__ import annotations

import pytest

from tidemill.core.errors import DiskFullError
from tidemill.log.segments import SegmentedLog
from tidemill.testing import FaultyDisk

SEGMENT = 8192


class SmallLog:
    def __init__(self, directory, seed: int = 1) -> None:
        self.directory = directory
        self.disk = FaultyDisk(seed)
        self.open()

    def open(self) -> None:
        self.log = SegmentedLog(self.disk, self.directory, segment_bytes=SEGMENT, opening=lambda _: (1, b"o"))
        self.frames = [bytes(frame.payload) for frame in self.log.recover(0, 0) if frame.kind == 2]

    def append_all(self, payloads: list[bytes]) -> None:
        self.log.reserve([len(payload) for payload in payloads], opening_growth_max=0)
        for payload in payloads:
            self.log.append(2, [payload], 5)

    def waiting_files(self) -> list[str]:
        names = self.disk.names(self.directory)
        return [name for name in names if name == "spare" or name.startswith("next")]


@pytest.fixture
def small(tmp_path):
    return SmallLog(tmp_path / "log")


def test_frames_that_were_reserved_are_all_written_or_none(small):
    small.append_all([b"first"])
    payloads = [bytes([i]) * 3_000 for i in range(10)]
    used = small.disk.allocated_bytes(small.directory)
    outcomes = []
    for extra in range(0, 8 * SEGMENT, 4096):
        small.disk.capacity_bytes = used + extra
        end = small.log.written_end
        try:
            small.append_all(payloads)
        except DiskFullError:
            assert small.log.written_end == end
            assert small.disk.allocated_bytes(small.directory) == used  # and nothing stays set aside
            assert small.log.pool.is_short
            outcomes.append(False)
        else:
            assert not small.log.pool.is_short
            outcomes.append(True)
            break
    assert outcomes.count(False) > 2
    assert outcomes[-1]
    small.disk = small.disk.crash(power_cut=False)
    small.open()
    assert small.frames == [b"first", *payloads]


def test_smaller_frames_than_were_reserved_find_room_too(small):
    small.append_all([b"first"])
    small.log.reserve([7_000] * 6 + [20_000], opening_growth_max=100)
    small.disk.capacity_bytes = small.disk.allocated_bytes(small.directory)
    for size in (5_000, 10, 6_999, 3_000, 3_000, 7_000, 20_000):
        small.log.append(2, [bytes(size)], 5)


def test_other_files_keep_the_room_they_are_promised(small):
    small.append_all([b"first"])
    small.disk.capacity_bytes = small.disk.allocated_bytes(small.directory) + 2 * SEGMENT
    small.log.reserve([SEGMENT // 2] * 2, opening_growth_max=0, also_free_bytes=SEGMENT)
    with pytest.raises(
        DiskFullError, match=r"8,193 more bytes are needed, 8,192 are free; free space on that disk"
    ):
        small.log.reserve([SEGMENT // 2] * 2, opening_growth_max=0, also_free_bytes=SEGMENT + 1)


def test_what_a_process_that_ended_had_set_aside_is_given_back(small):
    small.append_all([b"first"])
    small.log.reserve([7_000] * 4, opening_growth_max=0)
    assert len(small.waiting_files()) > 2
    small.disk = small.disk.crash(power_cut=False)
    small.open()
    assert small.waiting_files() == ["spare"]


def test_a_look_again_clears_the_shortage_as_soon_as_there_is_room(small):
    small.append_all([b"first"])
    small.disk.capacity_bytes = small.disk.allocated_bytes(small.directory)
    with pytest.raises(DiskFullError):
        small.append_all([bytes(SEGMENT)])
    small.log.pool.look_again()
    assert small.log.pool.is_short
    small.disk.capacity_bytes = None
    small.log.pool.look_again()
    assert not small.log.pool.is_short


def test_a_power_cut_never_brings_a_used_file_back_as_room(tmp_path):
    for seed in range(60):
        small = SmallLog(tmp_path / str(seed), seed)
        small.append_all([b"first" * 100])
        small.log.sync()
        if seed % 2:  # a full disk, where the spare itself becomes a segment
            small.disk.capacity_bytes = small.disk.allocated_bytes(small.directory)
        for _ in range(2):
            small.log.append(2, [b"frame" * 1_500], 5, reserved=True)
            small.disk.capacity_bytes = None
        small.disk = small.disk.crash(power_cut=True)
        for name in small.waiting_files():
            assert not (small.directory / name).read_bytes().strip(b"\0"), (seed, name)
