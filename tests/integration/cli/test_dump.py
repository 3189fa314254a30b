"""`tidemill dump` on every kind of file, on damaged ones, and on what was never ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from acceptance.command_line import make_directory
from helpers.small_broker import SmallBroker
from tidemill.cli.dump import FileKind
from tidemill.cli.main import run
from tidemill.core.model import Draft
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import RealDisk
from tidemill.log.head_record import HeadRecord
from tidemill.store.formats.find_format import RunHeader, encode_run_header
from tidemill.timer.attempt_format import ATTEMPT_FORMAT, ATTEMPT_NAME, encode_attempt
from tidemill.timer.ready_format import ReadyHeader, Runner, encode_ready
from tidemill.timer.ready_row_format import READY


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("dump") / "data"
    make_directory(made)
    hashes, refs = np.array([5, 6], np.uint64), np.array([7, 1 << 63 | 8 << 16 | 1], np.uint64)
    (made / "index" / "find" / "0-9.run").write_bytes(
        encode_run_header(RunHeader(2, 0, 9), (hashes, refs)) + hashes.tobytes() + refs.tobytes()
    )
    # As after a cut and after a step that handed over: for both this directory is too young.
    HeadRecord(RealDisk(), made / "log").save(0)
    attempt = Checkpoint(RealDisk(), made / "timer" / "shard-000", ATTEMPT_NAME, ATTEMPT_FORMAT)
    attempt.save(encode_attempt(7, 9), sync=False)
    rows = np.array([(1_800_000_000_000, 4)], READY)
    header = ReadyHeader(Runner.EMBEDDED, 0, 1, 2, 3, 4)
    (made / "000-0000000001-000000000002.ready").write_bytes(
        encode_ready(header, rows, np.array([3], np.uint16))
    )
    return made


def _dumped(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run(["dump", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def _one(directory: Path, pattern: str) -> Path:
    return min(path for path in directory.glob(pattern) if path.is_file() and path.stat().st_size)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (
            "log/*.log",
            ["kind=base", "kind=messages", "kind=cancel", "kind=re-enter", "kind=release", "unused"],
        ),
        ("consumers/*.log", ["kind=opening"]),
        ("identity.*", ["broker_id="]),
        ("index/checkpoint.*", ["next_seq="]),
        ("consumers/checkpoint.*", ["settled_below="]),
        ("index/entries/*", ["seq=0 ", "deliver_at="]),
        ("index/queues/*/*/*", ["offset=0", "via="]),
        ("index/find/*.run", ["pairs=2", "seq=7", "frame=8 row=1"]),
        ("timer/target", ["epoch="]),
        ("timer/shard-000/header.*", ["tick_ms=100"]),
        ("timer/shard-000/cursor.*", ["step="]),
        ("timer/shard-000/attempt.*", ["epoch=7", "step=9"]),
        ("log/head.*", ["log_begins_at=0"]),
        ("ballast", ["preallocated space"]),
        ("log/spare", ["preallocated space"]),
        ("*.ready", ["seq=4"]),
    ],
)
def test_every_kind_of_file_is_readable(
    directory: Path, capsys: pytest.CaptureFixture[str], pattern: str, expected: list[str]
) -> None:
    text = _dumped(capsys, _one(directory, pattern))
    for part in expected:
        assert part in text


def test_units_and_slots_are_readable(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards = [
        shard for shard in (directory / "timer").glob("shard-*") if list((shard / "timer-log").iterdir())
    ]
    unit = _one(shards[0], "timer-log/*")
    text = _dumped(capsys, unit)
    assert "prev_pos=" in text
    text = _dumped(capsys, shards[0] / "wheel")
    assert "last_pos=" in text


def test_messages_are_shown_with_their_frame(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = _one(directory, "log/*.log")
    text = _dumped(capsys, segment, "--messages", "2")
    assert "more in this frame" in text
    lines = [json.loads(line) for line in _dumped(capsys, segment, "--json", "--messages", "50").splitlines()]
    assert {"frame", "message"} <= {line["what"] for line in lines}
    assert any(line.get("body") == "soon" for line in lines)


def test_the_limit_counts_frames(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = _dumped(capsys, _one(directory, "log/*.log"), "--limit", "2", "--messages", "0")
    assert text.count("frame ") == 2
    assert "--limit 0" in text


def test_a_damaged_frame_is_named_and_the_rest_still_shown(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(_one(directory, "log/*.log").read_bytes())
    data[1_000] ^= 0xFF
    damaged = tmp_path / "00000000000000000000.log"
    damaged.write_bytes(data)
    text = _dumped(capsys, damaged)
    assert "DAMAGED" in text
    assert text.index("DAMAGED") < text.index("kind=release")


@pytest.mark.parametrize(
    "content", [b"no file of ours\n", bytes(range(256)) * 9, b"TMRD but not really", b""]
)
def test_garbage_is_said_to_be_garbage(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "garbage"
    file.write_bytes(content)
    assert run(["dump", str(file)]) == 1
    complaint = capsys.readouterr().err
    assert str(file) in complaint
    assert complaint.count("\n") == 1


def test_the_kind_of_a_file_can_be_given(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copied"
    copy.write_bytes(_one(directory, "index/entries/*").read_bytes())
    assert "seq=0 " in _dumped(capsys, copy, "--as", "entries")
    assert run(["dump", str(copy), "--as", "find"]) == 1
    assert run(["dump", str(copy), "--as", "poem"]) == 2


@pytest.mark.parametrize("kind", FileKind)
@pytest.mark.parametrize("name", ["identity.0", "timer/shard-000/cursor.0", "timer/target"])
def test_a_file_that_is_said_to_be_another_ends_in_no_traceback(
    directory: Path, name: str, kind: FileKind
) -> None:
    assert run(["dump", str(directory / name), "--as", kind.value]) in (0, 1)


def test_every_file_of_a_directory_can_be_dumped(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    codes = {str(path.relative_to(directory)): run(["dump", str(path)]) for path in files}
    assert {name for name, code in codes.items() if code} == set()
    assert len(codes) > 20
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "content"), [("ballast", bytes(999) + b"x"), ("0-9.run", bytes(1_000)), ("attempt.0", b"TMCP")]
)
def test_what_a_name_promises_is_looked_for(
    name: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert run(["dump", str(tmp_path / name)]) == 1
    assert str(tmp_path / name) in capsys.readouterr().err


def test_the_rocksdb_store_of_a_shard_is_dumped_by_its_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "data"
    small = SmallBroker(directory, timer_store="rocksdb", shards=1)
    small.broker.send([Draft("t", b"", delay_ms=3_600_000) for _ in range(5)])
    small.advance(30_000)
    shard = directory / "timer" / "shard-000"
    # Also while the broker has it open.
    lines = [json.loads(line) for line in _dumped(capsys, shard / "rocksdb", "--json").splitlines()]
    small.check()
    small.close()
    assert lines[0]["what"] == "cursor"
    assert {line["seq"] for line in lines[1:]} == {0, 1, 2, 3, 4}
    assert run(["dump", str(shard / "rocksdb" / "CURRENT")]) == 2
    assert f"dump the directory: {shard / 'rocksdb'}" in capsys.readouterr().err
    assert "tick_ms=1000" in _dumped(capsys, _one(directory, "timer/shard-000/header.*"))


@pytest.mark.parametrize("name", ["LOCK", "timer/shard-000/lock"])
def test_a_lock_says_who_took_it_last(directory: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert str(os.getpid()) in _dumped(capsys, directory / name)


def test_who_reads_no_further_makes_no_failure(directory: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = Path(sys.executable).with_name("tidemill")
    done = subprocess.run(
        [command, "dump", _one(directory, "log/*.log")], stdout=writing, stderr=subprocess.PIPE, timeout=120
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
