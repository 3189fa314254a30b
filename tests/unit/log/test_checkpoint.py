"""Checkpoints: two generations, of which one always reads back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.core.errors import NewerFormatError
from tidemill.log.checkpoint import Checkpoint, decode_checkpoint
from tidemill.testing import FaultPlan, FaultyDisk, SimulatedCrash


def _saved(disk: FaultyDisk, directory: Path, *contents: bytes, version: int = 1) -> Checkpoint:
    checkpoint = Checkpoint(disk, directory, "cursor", version)
    checkpoint.load()
    for content in contents:
        checkpoint.save(content, sync=True)
    return checkpoint


def _load(disk: FaultyDisk, directory: Path, version: int = 1) -> bytes | None:
    return Checkpoint(disk, directory, "cursor", version).load()


def test_nothing_saved_loads_as_nothing(tmp_path: Path) -> None:
    with FaultyDisk() as disk:
        assert _load(disk, tmp_path) is None


def test_the_newest_content_is_loaded(tmp_path: Path) -> None:
    with FaultyDisk() as disk:
        _saved(disk, tmp_path, b"one")
        assert _load(disk, tmp_path) == b"one"
        _saved(disk, tmp_path, b"a longer two", b"3")
        assert _load(disk, tmp_path) == b"3"
        assert disk.names(tmp_path) == ["cursor.0", "cursor.1"]


def test_empty_content_is_content(tmp_path: Path) -> None:
    with FaultyDisk() as disk:
        _saved(disk, tmp_path, b"one", b"")
        assert _load(disk, tmp_path) == b""


@pytest.mark.parametrize("spoiled_byte", [0, 5, 9, 17, 25, 33])
def test_a_torn_generation_gives_way_to_the_one_before(tmp_path: Path, spoiled_byte: int) -> None:
    with FaultyDisk() as disk:
        _saved(disk, tmp_path, b"first", b"second")
        newest = tmp_path / "cursor.0"
        data = bytearray(newest.read_bytes())
        data[spoiled_byte] ^= 0x40
        newest.write_bytes(data)
        assert _load(disk, tmp_path) == b"first"
        # The torn one is the one written next.
        _saved(disk, tmp_path, b"third")
        assert _load(disk, tmp_path) == b"third"


def test_a_cut_generation_does_not_decode(tmp_path: Path) -> None:
    with FaultyDisk() as disk:
        _saved(disk, tmp_path, b"content")
    data = (tmp_path / "cursor.1").read_bytes()
    assert decode_checkpoint(data) is not None
    assert all(decode_checkpoint(data[:length]) is None for length in range(len(data)))


def _number(content: bytes) -> int:
    return int(content)


def test_content_of_another_owner_gives_way_to_the_generation_before(tmp_path: Path) -> None:
    with FaultyDisk() as disk:
        _saved(disk, tmp_path, b"1", b"2", b"not a number")
        checkpoint = Checkpoint(disk, tmp_path, "cursor", 1, _number)
        assert checkpoint.load() == b"2"
        assert not checkpoint.is_damaged()
        checkpoint.save(b"3", sync=True)
        assert decode_checkpoint((tmp_path / "cursor.1").read_bytes()).content == b"3"
        assert Checkpoint(disk, tmp_path, "cursor", 1, _number).load() == b"3"


def test_content_of_another_owner_alone_is_damage_and_no_torn_write(tmp_path: Path) -> None:
    with FaultyDisk() as disk:
        _saved(disk, tmp_path, b"not a number")
        checkpoint = Checkpoint(disk, tmp_path, "cursor", 1, _number)
        assert checkpoint.load() is None
        assert checkpoint.is_damaged()


def test_a_generation_in_the_file_of_the_other_is_not_overwritten(tmp_path: Path) -> None:
    with FaultyDisk() as disk:
        _saved(disk, tmp_path, b"one", b"two")
        (tmp_path / "cursor.0").rename(tmp_path / "cursor.1")
        checkpoint = Checkpoint(disk, tmp_path, "cursor", 1)
        assert checkpoint.load() == b"two"
        checkpoint.save(b"three", sync=True)
        assert decode_checkpoint((tmp_path / "cursor.1").read_bytes()).content == b"two"


def test_a_newer_format_is_refused_and_an_older_one_is_no_content(tmp_path: Path) -> None:
    with FaultyDisk() as disk:
        _saved(disk, tmp_path, b"of version 2", version=2)
        with pytest.raises(NewerFormatError, match="has format 2, this Tidemill reads up to 1"):
            _load(disk, tmp_path, version=1)
        assert _load(disk, tmp_path, version=3) is None


def test_removed_means_gone(tmp_path: Path) -> None:
    with FaultyDisk() as disk:
        _saved(disk, tmp_path, b"one", b"two").remove()
        assert disk.names(tmp_path) == []
        assert _load(disk, tmp_path) is None


@pytest.mark.parametrize("crash_at", range(1, 5))
@pytest.mark.parametrize("crash_after", [False, True])
def test_a_power_cut_during_a_save_leaves_the_old_or_the_new(
    tmp_path: Path, crash_at: int, crash_after: bool
) -> None:
    for seed in range(40):
        directory = tmp_path / str(seed)
        directory.mkdir()
        disk = FaultyDisk(seed)
        checkpoint = _saved(disk, directory, b"1" * 700, b"2" * 600)
        wanted = [b"2" * 600, b"3" * 900, b"4" * 100]
        disk.arm(FaultPlan(crash_at=crash_at, crash_after=crash_after, count_writes=True))
        saved = 0
        try:
            for content in wanted[1:]:
                checkpoint.save(content, sync=True)
                saved += 1
        except SimulatedCrash:
            pass
        assert saved < 2, "the crash must fall into one of the two saves"
        with disk.crash(power_cut=True) as left:
            assert _load(left, directory) in wanted[saved : saved + 2]
