"""What a kill and a power cut leave on a FaultyDisk: not less than was promised, not more than was done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tidemill.core.errors import SyncFailedError
from tidemill.log.disk import DiskFile
from tidemill.testing import FaultPlan, FaultyDisk, SimulatedCrash

_SEEDS = range(60)


def _file(disk: FaultyDisk, path: Path, content: bytes = b"") -> DiskFile:
    """A file whose content and name are safe."""
    file = disk.open(path, create=True)
    file.write(0, content)
    file.sync()
    disk.sync_dir(path.parent)
    return file


def _content(disk: FaultyDisk, path: Path) -> bytes | None:
    if not disk.exists(path):
        return None
    file = disk.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def _outcomes(tmp_path: Path, work: Callable[[FaultyDisk, Path], None]) -> list[dict[str, bytes | None]]:
    """The files after `work` and a power cut, for many seeds."""
    outcomes = []
    for seed in _SEEDS:
        directory = tmp_path / str(seed)
        directory.mkdir()
        disk = FaultyDisk(seed)
        work(disk, directory)
        with disk.crash(power_cut=True) as left:
            outcomes.append({name: _content(left, directory / name) for name in left.names(directory)})
    return outcomes


# What must survive


def test_a_kill_keeps_every_byte_and_name(tmp_path: Path) -> None:
    disk = FaultyDisk(1)
    file = disk.open(tmp_path / "a", create=True)
    file.write(0, b"unsynced")
    disk.rename(tmp_path / "a", tmp_path / "b")
    with disk.crash(power_cut=False) as left:
        assert left.names(tmp_path) == ["b"]
        assert _content(left, tmp_path / "b") == b"unsynced"


def test_a_power_cut_after_a_kill_still_takes_what_was_not_synced(tmp_path: Path) -> None:
    def work(disk: FaultyDisk, directory: Path) -> None:
        file = _file(disk, directory / "f", b"old")
        file.write(0, b"new")

    def killed_first(seed: int) -> bytes | None:
        directory = tmp_path / str(seed)
        directory.mkdir()
        disk = FaultyDisk(seed)
        work(disk, directory)
        with disk.crash(power_cut=False).crash(power_cut=True) as left:
            return _content(left, directory / "f")

    assert {killed_first(seed) for seed in _SEEDS} == {b"old", b"new"}


def test_synced_bytes_and_names_survive_a_power_cut(tmp_path: Path) -> None:
    def work(disk: FaultyDisk, directory: Path) -> None:
        file = _file(disk, directory / "f", b"x" * 2000)
        file.preallocate(8192)
        file.scatter(np.array([700], np.int64), np.array([1], "<i8"))
        file.truncate(6000)
        file.sync()

    expected = b"x" * 2000 + bytes(3600) + b"\1" + bytes(399)
    outcomes = _outcomes(tmp_path, work)
    assert all(outcome["f"] == expected for outcome in outcomes)


def test_a_sync_of_one_file_does_not_save_another(tmp_path: Path) -> None:
    def work(disk: FaultyDisk, directory: Path) -> None:
        first, second = _file(disk, directory / "1", b"old"), _file(disk, directory / "2", b"old")
        first.write(0, b"new")
        second.write(0, b"new")
        first.sync()

    outcomes = _outcomes(tmp_path, work)
    assert all(outcome["1"] == b"new" for outcome in outcomes)
    assert {outcome["2"] for outcome in outcomes} == {b"old", b"new"}


# What may be lost


def test_an_unsynced_write_is_kept_lost_or_torn_at_a_sector(tmp_path: Path) -> None:
    def work(disk: FaultyDisk, directory: Path) -> None:
        _file(disk, directory / "f", b"o" * 2048).write(0, b"n" * 2048)

    contents = {outcome["f"] for outcome in _outcomes(tmp_path, work)}
    assert {b"o" * 2048, b"n" * 2048} < contents
    for content in contents:
        assert content is not None
        assert all(content[at : at + 512] in (b"o" * 512, b"n" * 512) for at in range(0, 2048, 512))


def test_a_later_write_may_survive_an_earlier_one(tmp_path: Path) -> None:
    def work(disk: FaultyDisk, directory: Path) -> None:
        file = _file(disk, directory / "f", b"o" * 1024)
        file.write(0, b"n" * 512)
        file.write(512, b"n" * 512)

    contents = {outcome["f"] for outcome in _outcomes(tmp_path, work)}
    assert contents == {a * 512 + b * 512 for a in (b"o", b"n") for b in (b"o", b"n")}


def test_writes_to_one_sector_keep_their_order(tmp_path: Path) -> None:
    def work(disk: FaultyDisk, directory: Path) -> None:
        file = _file(disk, directory / "f", b"00")
        file.write(0, b"1")
        file.write(1, b"2")

    contents = {outcome["f"] for outcome in _outcomes(tmp_path, work)}
    assert contents == {b"00", b"10", b"12"}


def test_the_synced_bytes_may_come_back_from_under_several_writes(tmp_path: Path) -> None:
    def work(disk: FaultyDisk, directory: Path) -> None:
        file = _file(disk, directory / "f", b"0")
        file.write(0, b"1")
        file.write(0, b"2")

    assert {outcome["f"] for outcome in _outcomes(tmp_path, work)} == {b"0", b"1", b"2"}


def test_an_unsynced_scatter_may_be_torn_between_sectors(tmp_path: Path) -> None:
    def work(disk: FaultyDisk, directory: Path) -> None:
        file = _file(disk, directory / "f", bytes(4096))
        file.scatter(np.array([0, 64, 65], np.int64), np.array([1, 2, 3], "<i8"))

    def rows(content: bytes | None) -> tuple[int, ...]:
        assert content is not None
        return tuple(np.frombuffer(content, "<i8")[[0, 64, 65]].tolist())

    found = {rows(outcome["f"]) for outcome in _outcomes(tmp_path, work)}
    assert found == {(0, 0, 0), (1, 0, 0), (0, 2, 3), (1, 2, 3)}


def test_an_unsynced_size_may_be_the_old_or_the_new(tmp_path: Path) -> None:
    def shrunk(disk: FaultyDisk, directory: Path) -> None:
        _file(disk, directory / "f", b"abcdef").truncate(2)

    def grown(disk: FaultyDisk, directory: Path) -> None:
        _file(disk, directory / "f", b"ab").preallocate(1000)

    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    assert {outcome["f"] for outcome in _outcomes(tmp_path / "1", shrunk)} == {b"abcdef", b"ab"}
    assert {outcome["f"] for outcome in _outcomes(tmp_path / "2", grown)} == {b"ab", b"ab" + bytes(998)}


def test_bytes_cut_off_do_not_shine_through_when_the_file_grows_again(tmp_path: Path) -> None:
    def work(disk: FaultyDisk, directory: Path) -> None:
        file = _file(disk, directory / "f", b"secret")
        file.truncate(0)
        file.truncate(10)

    assert {outcome["f"] for outcome in _outcomes(tmp_path, work)} == {b"secret", b"", bytes(10)}


def test_a_name_never_synced_may_vanish(tmp_path: Path) -> None:
    def work(disk: FaultyDisk, directory: Path) -> None:
        file = disk.open(directory / "f", create=True)
        file.write(0, b"abc")
        file.sync()

    assert {outcome.get("f") for outcome in _outcomes(tmp_path, work)} == {None, b"abc"}


def test_an_unsynced_rename_shows_the_old_or_the_new_file_but_always_one(tmp_path: Path) -> None:
    def work(disk: FaultyDisk, directory: Path) -> None:
        _file(disk, directory / "f", b"old").close()
        _file(disk, directory / "f.new", b"new").close()
        disk.rename(directory / "f.new", directory / "f")

    outcomes = _outcomes(tmp_path, work)
    assert {(outcome["f"], outcome.get("f.new")) for outcome in outcomes} == {
        (b"old", b"new"),
        (b"new", None),
    }


def test_a_file_renamed_twice_has_exactly_one_of_its_names(tmp_path: Path) -> None:
    def work(disk: FaultyDisk, directory: Path) -> None:
        _file(disk, directory / "a", b"abc").close()
        disk.rename(directory / "a", directory / "b")
        disk.rename(directory / "b", directory / "c")

    assert {tuple(outcome) for outcome in _outcomes(tmp_path, work)} == {("a",), ("b",), ("c",)}


def test_a_removed_file_may_come_back_until_the_directory_is_synced(tmp_path: Path) -> None:
    def removed(disk: FaultyDisk, directory: Path) -> None:
        _file(disk, directory / "f", b"abc").close()
        disk.remove(directory / "f")

    def removed_and_synced(disk: FaultyDisk, directory: Path) -> None:
        removed(disk, directory)
        disk.sync_dir(directory)

    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    assert {outcome.get("f") for outcome in _outcomes(tmp_path / "1", removed)} == {None, b"abc"}
    assert {outcome.get("f") for outcome in _outcomes(tmp_path / "2", removed_and_synced)} == {None}


def test_a_removed_tree_may_come_back_in_part_until_its_parent_is_synced(tmp_path: Path) -> None:
    found = set()
    for seed in _SEEDS:
        root = tmp_path / str(seed)
        disk = FaultyDisk(seed)
        disk.make_dir(root / "shard")
        disk.sync_dir(root)
        _file(disk, root / "shard" / "1", b"one").close()
        _file(disk, root / "shard" / "2", b"two").close()
        disk.remove_tree(root / "shard")
        with disk.crash(power_cut=True) as left:
            found.add(tuple(left.names(root / "shard")))
    assert found == {(), ("1",), ("2",), ("1", "2")}


def test_a_sync_of_the_parent_settles_all_that_happened_in_a_removed_tree(tmp_path: Path) -> None:
    for seed in _SEEDS:
        root = tmp_path / str(seed)
        disk = FaultyDisk(seed)
        disk.make_dir(root / "shard")
        disk.sync_dir(root)
        _file(disk, root / "shard" / "1", b"one").close()
        _file(disk, root / "shard" / "2", b"two").close()
        disk.remove(root / "shard" / "1")
        disk.remove_tree(root / "shard")
        disk.sync_dir(root)
        with disk.crash(power_cut=True) as left:
            assert left.names(root) == []


def test_a_synced_name_is_not_undone_by_an_older_removal(tmp_path: Path) -> None:
    for seed in _SEEDS:
        root = tmp_path / str(seed)
        disk = FaultyDisk(seed)
        disk.make_dir(root / "shard")
        disk.sync_dir(root)
        _file(disk, root / "shard" / "f", b"old").close()
        disk.remove_tree(root / "shard")
        disk.make_dir(root / "shard")
        _file(disk, root / "shard" / "f", b"new").close()
        with disk.crash(power_cut=True) as left:
            assert _content(left, root / "shard" / "f") == b"new"


def test_a_new_directory_may_vanish_until_something_in_it_is_synced(tmp_path: Path) -> None:
    def is_left(seed: int, *, is_synced: bool) -> bool:
        directory = tmp_path / f"{seed}-{is_synced}"
        disk = FaultyDisk(seed)
        disk.make_dir(directory / "deep")
        if is_synced:
            disk.sync_dir(directory / "deep")
        with disk.crash(power_cut=True) as left:
            return left.exists(directory / "deep")

    assert {is_left(seed, is_synced=False) for seed in _SEEDS} == {False, True}
    assert {is_left(seed, is_synced=True) for seed in _SEEDS} == {True}


# The dead stay dead


def test_nothing_of_a_crashed_process_works_again(tmp_path: Path) -> None:
    disk = FaultyDisk(1)
    file = _file(disk, tmp_path / "f", b"abc")
    view = file.map(3)
    with disk.crash(power_cut=True) as left:
        for call in (
            lambda: file.write(0, b"zzz"),
            lambda: file.read(0, 1),
            lambda: file.sync(),
            lambda: disk.open(tmp_path / "f"),
            lambda: disk.rename(tmp_path / "f", tmp_path / "g"),
            lambda: disk.lock(tmp_path / "LOCK", "zombie"),
        ):
            with pytest.raises(SimulatedCrash):
                call()
        file.close()
        disk.close()
        assert view.tobytes() == b"abc"
        assert _content(left, tmp_path / "f") == b"abc"


def test_maps_of_a_dead_process_stay_readable_when_the_file_shrinks(tmp_path: Path) -> None:
    for seed in range(10):
        path = tmp_path / str(seed)
        disk = FaultyDisk(seed)
        file = _file(disk, path)
        file.preallocate(1 << 16)
        view = file.map(1 << 16)
        with disk.crash(power_cut=True):
            assert int(view.sum()) == 0


def test_a_crash_lets_go_of_locks(tmp_path: Path) -> None:
    disk = FaultyDisk(1)
    disk.lock(tmp_path / "LOCK", "first")
    with disk.crash(power_cut=False) as left:
        left.lock(tmp_path / "LOCK", "second").release()


def test_the_same_seed_leaves_the_same_bytes(tmp_path: Path) -> None:
    def left_behind(run: int) -> dict[str, bytes | None]:
        directory = tmp_path / str(run)
        directory.mkdir()
        disk = FaultyDisk(99)
        for name in "abcdef":
            file = disk.open(directory / name, create=True)
            for at in range(0, 20_000, 700):
                file.write(at, name.encode() * 900)
        with disk.crash(power_cut=True) as left:
            return {name: _content(left, directory / name) for name in left.names(directory)}

    assert left_behind(1) == left_behind(2)


# Planned faults


def test_a_planned_crash_falls_before_or_after_the_counted_operation(tmp_path: Path) -> None:
    for crash_after in (False, True):
        directory = tmp_path / str(crash_after)
        directory.mkdir()
        disk = FaultyDisk(1)
        file = _file(disk, directory / "a", b"abc")
        disk.arm(FaultPlan(crash_at=2, crash_after=crash_after))
        file.sync()
        with pytest.raises(SimulatedCrash, match="operation 2: rename"):
            disk.rename(directory / "a", directory / "b")
        with pytest.raises(SimulatedCrash):
            disk.exists(directory / "a")
        with disk.crash(power_cut=False) as left:
            assert left.names(directory) == (["b"] if crash_after else ["a"])


def test_a_sync_that_crashes_first_saves_nothing_and_one_that_crashes_after_saves_all(tmp_path: Path) -> None:
    def left_behind(seed: int, crash_after: bool) -> bytes | None:
        path = tmp_path / f"{seed}-{crash_after}"
        disk = FaultyDisk(seed)
        file = _file(disk, path, b"old")
        disk.arm(FaultPlan(crash_at=1, crash_after=crash_after))
        file.write(0, b"new")
        with pytest.raises(SimulatedCrash):
            file.sync()
        with disk.crash(power_cut=True) as left:
            return _content(left, path)

    assert {left_behind(seed, False) for seed in _SEEDS} == {b"old", b"new"}
    assert {left_behind(seed, True) for seed in _SEEDS} == {b"new"}


def test_a_kill_in_the_middle_of_a_write_leaves_whole_pages_of_it(tmp_path: Path) -> None:
    sizes = set()
    for seed in _SEEDS:
        path = tmp_path / str(seed)
        disk = FaultyDisk(seed)
        file = _file(disk, path)
        disk.arm(FaultPlan(crash_at=1, count_writes=True))
        with pytest.raises(SimulatedCrash):
            file.write(0, b"n" * 10_000)
        with disk.crash(power_cut=False) as left:
            sizes.add(len(_content(left, path) or b""))
    assert sizes == {0, 4096, 8192}


def test_writes_count_only_when_asked_for(tmp_path: Path) -> None:
    disk = FaultyDisk(1)
    file = disk.open(tmp_path / "f", create=True)
    file.write(0, b"abc")
    assert disk.operation_count == 0
    disk.arm(FaultPlan(count_writes=True))
    file.write(0, b"abc")
    file.sync()
    assert (disk.operation_count, disk.sync_count) == (2, 1)
    assert disk.trace[-1].startswith("2 sync")
    disk.close()


def test_a_failed_sync_saves_nothing_and_no_later_sync_makes_up_for_it(tmp_path: Path) -> None:
    def left_behind(seed: int) -> bytes | None:
        path = tmp_path / str(seed)
        disk = FaultyDisk(seed)
        file = _file(disk, path, b"o" * 1024)
        disk.arm(FaultPlan(fail_sync_at=1))
        file.write(0, b"n" * 512)
        with pytest.raises(SyncFailedError, match="planned fault"):
            file.sync()
        file.write(512, b"n" * 512)
        file.sync()
        with disk.crash(power_cut=True) as left:
            return _content(left, path)

    assert {left_behind(seed) for seed in _SEEDS} == {b"o" * 512 + b"n" * 512, b"n" * 1024}
