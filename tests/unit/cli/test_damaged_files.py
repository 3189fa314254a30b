"""Every kind of file of a data directory, damaged in many ways: nothing ends in a traceback.

`check`, `rebuild` and `dump` exit 0 or 1 and say which file, and what to do; opening raises nothing but
Tidemill's own errors.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import tidemill
from helpers.small_broker import STORE, TIMER
from tidemill.broker.broker import Broker, Sizes
from tidemill.broker.control.holds import Holds, HoldsState
from tidemill.broker.control.simulated_time import KeptClock
from tidemill.cli.main import run
from tidemill.core.config import BrokerSettings
from tidemill.core.errors import NewerFormatError, TidemillError
from tidemill.log.disk import RealDisk
from tidemill.log.head_record import HeadRecord
from tidemill.store.indexes import IndexSizes
from tidemill.store.upkeep.head_cut import cut_head
from tidemill.testing import ManualClock

HOUR_MS = 3_600_000
START_MS = 1_800_000_000_000
_STORE = replace(STORE, sizes=IndexSizes(find_memory_pairs_max=64))


def _open(directory: Path, clock: ManualClock | None = None) -> Broker:
    levels = "1s 9s" if clock is not None else ""
    settings = BrokerSettings(
        segment_bytes=STORE.segment_bytes, shards=TIMER.shards, lead_ms=2_000, levels=levels
    )
    return Broker(
        directory,
        settings,
        clock=clock or ManualClock(START_MS),
        has_threads=False,
        sizes=Sizes(store=_STORE, timer=TIMER),
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with something of everything, closed in the middle of its work."""
    directory = tmp_path_factory.mktemp("whole") / "data"
    clock = ManualClock(START_MS)
    broker = _open(directory, clock)
    far = [tidemill.Draft("t", b"x" * 300, delay_ms=HOUR_MS + 5 * i, keys=(f"k{i}",)) for i in range(200)]
    broker.send([tidemill.Draft("t", b"old" * 900, delay_ms=9_000 + i) for i in range(40)])
    broker.advance_to(START_MS + 60_000)
    broker.send(far)
    broker.store.checkpoint()
    broker.advance_to(START_MS + 2 * 60_000)
    cut_head(broker.store, START_MS + 2 * HOUR_MS, START_MS)
    broker.send([tidemill.Draft("plain", b"at once %d" % i) for i in range(9)])
    for topic in ("t", "plain"):
        deliveries = broker.receive(topic, "g", count=5)
        broker.ack([delivery.ack_token for delivery in deliveries[:3]])
    broker.send([tidemill.Draft("t", b"y" * 300, delay_ms=2 * HOUR_MS) for _ in range(40)])
    broker.topics.change("t", is_paused=True)
    broker.advance_to(START_MS + HOUR_MS + 60_000)
    broker.close()
    return directory


def _flip(at: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        used = len(content.rstrip(b"\0")) or len(content)
        content[min(len(content) - 1, int(used * at))] ^= 0x10
        path.write_bytes(content)

    return damage


def _zero(path: Path) -> None:
    content = bytearray(path.read_bytes())
    used = len(content.rstrip(b"\0"))
    start = used // 3
    content[start : start + 64] = bytes(len(content[start : start + 64]))
    path.write_bytes(content)


def _halve(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content.rstrip(b"\0")) // 2])


def _garbage(path: Path) -> None:
    path.write_bytes(bytes(range(7, 207)) * 5)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _unreadable(path: Path) -> None:
    """As root everything can be read, so: a link that leads to itself."""
    path.unlink()
    path.symlink_to(path)


WAYS: dict[str, Callable[[Path], None]] = {
    "flip-start": _flip(0),
    "flip-middle": _flip(0.5),
    "zero": _zero,
    "halve": _halve,
    "empty": lambda path: path.write_bytes(b""),
    "gone": Path.unlink,
    "garbage": _garbage,
    "directory": _directory,
    "unreadable": _unreadable,
}
PARTS = [
    "identity.*",
    "levels.*",
    "LOCK",
    "ballast",
    "log/*.log",
    "log/head.*",
    "log/spare",
    "consumers/*.log",
    "consumers/checkpoint.*",
    "index/checkpoint.*",
    "index/entries/*",
    "index/queues/*/*/*",
    "index/find/*.run",
    "timer/target",
    "timer/shard-000/wheel",
    "timer/shard-000/cursor.*",
    "timer/shard-000/header.*",
    "timer/shard-000/attempt.*",
    "timer/shard-000/lock",
    "timer/shard-000/timer-log/*",
    "timer/shard-*/ready/*",
]


def _file(directory: Path, part: str) -> Path:
    """The newest of these files."""
    found = [path for path in directory.glob(part) if path.is_file()]
    assert found, f"the directory has no {part}"
    return max(found, key=lambda path: (path.stat().st_mtime_ns, path))


def _copy(whole: Path, tmp_path: Path, name: str) -> Path:
    return Path(shutil.copytree(whole, tmp_path / name))


def _require_exit(capsys: pytest.CaptureFixture[str], directory: Path, arguments: list[str]) -> None:
    """0, or 1 with words that name the directory, or a file or offset in it."""
    code = run(arguments)
    captured = capsys.readouterr()
    assert code in (0, 1), captured.err
    if code:
        said = captured.out + captured.err
        assert str(directory) in said
        assert "Traceback" not in said
        assert len(captured.err.splitlines()) <= 1, captured.err


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("part", PARTS)
def test_no_damage_ends_in_a_traceback(whole, tmp_path, capsys, part: str, way: str) -> None:
    file = _file(whole, part).relative_to(whole)
    checked, rebuilt = _copy(whole, tmp_path, "checked"), _copy(whole, tmp_path, "rebuilt")
    for directory in (checked, rebuilt):
        WAYS[way](directory / file)
    if (checked / file).is_file():
        _require_exit(capsys, checked, ["dump", str(checked / file)])
    try:
        _open(checked).close()
    except TidemillError as error:
        said = str(error)
        assert str(checked) in said, said
    _require_exit(capsys, checked, ["check", str(checked)])
    _require_exit(capsys, rebuilt, ["rebuild", str(rebuilt)])


@pytest.mark.parametrize("part", ["log", "index", "index/entries", "index/find", "consumers", "timer"])
@pytest.mark.parametrize("way", ["gone", "file", "empty", "stranger"])
def test_a_directory_that_is_not_what_it_was_ends_in_no_traceback(whole, tmp_path, capsys, part, way) -> None:
    for command in ("open", "check", "rebuild"):
        directory = _copy(whole, tmp_path, command)
        if way != "stranger":
            shutil.rmtree(directory / part)
        match way:
            case "file":
                (directory / part).write_bytes(b"a file")
            case "empty":
                (directory / part).mkdir()
            case "stranger":
                for name in ("notes.log", "x.run", "y.ready", "00000000000000000007", "lost+found"):
                    (directory / part / name).write_bytes(b"not ours")
        if command == "open":
            try:
                _open(directory).close()
            except TidemillError as error:
                said = str(error)
                assert str(directory) in said, said
        else:
            _require_exit(capsys, directory, [command, str(directory)])


CHECKPOINTS = [
    "identity",
    "levels",
    "clock",
    "holds",
    "log/head",
    "consumers/head",
    "consumers/checkpoint",
    "index/checkpoint",
    "timer/shard-000/cursor",
    "timer/shard-000/header",
    "timer/shard-000/attempt",
]


@pytest.fixture(scope="module")
def settled(whole, tmp_path_factory) -> Path:
    """The whole directory, with the checkpoints that a broker on its own clock has not."""
    directory = Path(shutil.copytree(whole, tmp_path_factory.mktemp("settled") / "data"))
    disk = RealDisk()
    KeptClock(disk, directory, START_MS).keep()
    Holds(disk, directory).save(HoldsState(releases_since_ms=START_MS))
    HeadRecord(disk, directory / "consumers").save(0)
    return directory


@pytest.mark.parametrize("has_other", [True, False], ids=["one", "both"])
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_the_checkpoint_of_something_else_ends_in_no_traceback(
    settled, tmp_path, capsys, kind: str, has_other: bool
) -> None:
    """With its checksum right, in one generation (the newest) or in both."""
    for other in ("identity", "log/head", "consumers/checkpoint", "index/checkpoint"):
        if other.rpartition("/")[2] == "head" == kind.rpartition("/")[2]:
            continue
        given = _newest_generation(settled, other).read_bytes()
        places = [_newest_generation(settled, kind).relative_to(settled)]
        if not has_other:
            places = [Path(f"{kind}.0"), Path(f"{kind}.1")]
        name = other.replace("/", "-")
        for command in ("open",) if has_other else ("check", "rebuild", "salvage"):
            directory = _copy(settled, tmp_path, f"{name}-{command}")
            for place in places:
                (directory / place).write_bytes(given)
            if command == "open":
                try:
                    KeptClock(RealDisk(), directory, START_MS)
                    _open(directory).close()
                except NewerFormatError:  # it has a higher format, so it is not decoded
                    assert other == "index/checkpoint"
            elif command == "salvage":
                assert run([command, str(directory), "--to", str(tmp_path / f"{name}-new")]) in (0, 1)
                assert len(capsys.readouterr().err.splitlines()) <= 1
            else:
                _require_exit(capsys, directory, [command, str(directory)])
            shutil.rmtree(directory)


def _newest_generation(directory: Path, checkpoint: str) -> Path:
    """The file of a checkpoint with the higher generation."""
    found = [path for n in (0, 1) if (path := directory / f"{checkpoint}.{n}").exists()]
    assert found, f"the directory has no {checkpoint}"
    return max(found, key=lambda path: int.from_bytes(path.read_bytes()[8:16], "little"))


def _foreign(directory: Path, sends: int, queues: int) -> Path:
    """Another data directory with topics of the same names and other content."""
    broker = _open(directory, ManualClock(START_MS + 7))
    broker.topics.create("plain", queue_count=queues)
    broker.topics.create("t", queue_count=queues)
    broker.send([tidemill.Draft("t", b"other" * 9, delay_ms=HOUR_MS + i) for i in range(sends)])
    broker.close()
    return directory


@pytest.mark.parametrize("has_origin", [True, False], ids=["today", "older"])
@pytest.mark.parametrize("sends", [1, 1_200, 3_000], ids=["before", "inside", "beyond"])
@pytest.mark.parametrize("queues", [1, 3])
def test_the_index_checkpoint_of_another_directory_is_not_believed(
    whole, tmp_path, capsys, monkeypatch, sends: int, queues: int, has_origin: bool
) -> None:
    if not has_origin:
        monkeypatch.setattr("tidemill.store.message_store.origin_of", lambda log, end: None)
    other = _foreign(tmp_path / "other", sends, queues)
    monkeypatch.undo()
    before = _open(_copy(whole, tmp_path, "before"))
    pending = before.status().pending
    before.close()
    is_known_as_foreign = (
        has_origin or sends < 3_000
    )  # an older one that goes beyond the log could be its own
    for command in ("open", "check", "rebuild", "salvage"):
        directory = _copy(whole, tmp_path, command)
        for n in (0, 1):
            (directory / f"index/checkpoint.{n}").unlink(missing_ok=True)
            if (given := other / f"index/checkpoint.{n}").exists():
                shutil.copy(given, directory / f"index/checkpoint.{n}")
        if command == "open":
            try:
                broker = _open(directory)
                assert broker.status().pending == pending
                assert not broker.check(tmp_path / "scratch")
                broker.close()
            except TidemillError:
                assert not is_known_as_foreign
            continue
        to = ["--to", str(tmp_path / "new")] if command == "salvage" else []
        _require_exit(capsys, directory, [command, str(directory), *to])
        if is_known_as_foreign:
            assert run(["check", str(directory)]) == 0
    if is_known_as_foreign:
        salvaged = _open(tmp_path / "new")
        assert salvaged.status().pending == pending
        salvaged.close()


@pytest.mark.parametrize("is_damaged", [False, True], ids=["whole-log", "damaged-log"])
@pytest.mark.parametrize("sends", [40, 150, 400])
@pytest.mark.parametrize("has_origin", [True, False], ids=["today", "older"])
def test_a_log_from_its_beginning_with_the_index_checkpoint_of_another_one(
    tmp_path, capsys, monkeypatch, sends: int, is_damaged: bool, has_origin: bool
) -> None:
    """Salvage, too, takes nothing from a checkpoint that contradicts the log, also where that is damaged."""
    if not has_origin:
        monkeypatch.setattr("tidemill.store.message_store.origin_of", lambda log, end: None)
    own, other = _foreign(tmp_path / "own", 200, 5), _foreign(tmp_path / "other", sends, 1)
    monkeypatch.undo()
    for n in (0, 1):
        (own / f"index/checkpoint.{n}").unlink(missing_ok=True)
        if (given := other / f"index/checkpoint.{n}").exists():
            shutil.copy(given, own / f"index/checkpoint.{n}")
    if is_damaged:
        log = next(iter(sorted((own / "log").glob("*.log"))))
        content = bytearray(log.read_bytes())
        content[4096:4160] = bytes(64)
        log.write_bytes(content)
    for command in ("check", "rebuild", "salvage"):
        directory = _copy(own, tmp_path, command)
        if command != "salvage":
            _require_exit(capsys, directory, [command, str(directory)])
            continue
        assert run([command, str(directory), "--to", str(tmp_path / "new")]) in (0, 1)
        salvaged = _open(tmp_path / "new", ManualClock(START_MS + 8))
        queues = {topic.name: topic.queue_count for topic in salvaged.store.topics}
        assert queues == {"plain": 5, "t": 5}
        assert is_damaged or salvaged.status().pending == 200
        salvaged.close()
