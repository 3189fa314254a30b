"""`check`, `dump`, `rebuild` and `salvage` on directories that are whole, damaged, in use or not ours.

Each command runs as a process at least once; elsewhere in the process of the test.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import tidemill
from acceptance.command_line import make_directory, one_line_on_stderr, run, run_here, start
from tidemill.broker.embedded import open_broker
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import RealDisk

pytestmark = pytest.mark.slow

_HOLD = """
import sys, threading, tidemill
with tidemill.open(sys.argv[1]) as broker:
    print("open")
    threading.Event().wait()
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("made") / "data"
    make_directory(made)
    return made


@pytest.fixture
def directory(made: Path, tmp_path: Path) -> Path:
    """A copy for each test: making one takes as long as the program's lead."""
    return Path(shutil.copytree(made, tmp_path / "data"))


def _first_segment(directory: Path) -> Path:
    return min((directory / "log").glob("*.log"))


def _flip_byte(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 0xFF]))


# -- check ----------------------------------------------------------------------------------------


def test_check_of_a_sound_directory_says_so(directory: Path) -> None:
    result = run("check", directory)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "all holds" in result.stdout
    assert "19 pending" in result.stdout


def test_check_can_answer_in_json(directory: Path) -> None:
    report = json.loads(run_here("check", directory, "--json").stdout)
    assert report["is_sound"] is True
    assert (report["pending"], report["released"], report["cancelled"]) == (19, 1, 1)


def test_check_rebuilds_nothing_because_of_other_settings(directory: Path) -> None:
    before = sorted(path.relative_to(directory) for path in (directory / "timer").rglob("timer-log/*"))
    assert run_here("check", directory).returncode == 0
    assert (
        sorted(path.relative_to(directory) for path in (directory / "timer").rglob("timer-log/*")) == before
    )
    assert not [p for p in (directory / "log").glob("*.log") if p.stat().st_size > 1 << 20]


def test_check_finds_a_flipped_byte_in_the_middle_of_the_log(directory: Path) -> None:
    _flip_byte(_first_segment(directory), 1_000)
    result = run_here("check", directory)
    assert result.returncode == 1
    assert "does not read back" in result.stdout
    assert "1 finding" in result.stdout
    assert "tidemill salvage" in result.stdout
    assert "tidemill rebuild" not in result.stdout, "which would refuse such a log"
    assert "Traceback" not in result.stderr


def test_check_derives_a_damaged_entry_again_and_names_it(directory: Path) -> None:
    (entries,) = (directory / "index" / "entries").iterdir()
    _flip_byte(entries, 48 * 3 + 9)
    result = run("check", directory)
    assert result.returncode == 0
    assert f"{entries}: damage in the entries of seqs 3 to 3; derived again" in result.stderr
    assert "damage" not in run("check", directory).stderr


def test_a_path_that_is_no_data_directory_is_left_alone(tmp_path: Path) -> None:
    for command in ("check", "rebuild"):
        result = run_here(command, tmp_path)
        assert result.returncode == 1
        assert "not a data directory" in one_line_on_stderr(result)
    assert not list(tmp_path.iterdir())


def test_a_directory_in_use_is_refused_and_the_holder_named(directory: Path) -> None:
    with start(_HOLD, directory) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "open\n"
            for command in ("check", "rebuild"):
                result = run_here(command, directory)
                assert result.returncode == 1
                assert f"in use by process {holder.pid}" in one_line_on_stderr(result)
            assert run_here("dump", _first_segment(directory)).returncode == 0
        finally:
            holder.kill()


def test_a_directory_of_a_newer_format_is_refused(directory: Path) -> None:
    identity = Checkpoint(RealDisk(), directory, "identity", 99)
    identity._generation = 7
    identity.save(b"{}", sync=False)
    result = run_here("check", directory)
    assert result.returncode == 1
    assert "newer Tidemill" in one_line_on_stderr(result)


# -- rebuild --------------------------------------------------------------------------------------


def test_rebuild_makes_every_derived_file_again(directory: Path) -> None:
    shutil.rmtree(directory / "index")
    shutil.rmtree(directory / "timer")
    result = run("rebuild", directory)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "19 pending, 1 released, 1 cancelled" in result.stdout
    assert "all holds" in result.stdout
    with open_broker(directory) as broker:
        assert broker.status().pending == 19
        assert broker.views.read("orders", 0, 0, 10) or broker.receive("orders", "others", count=10)


def test_rebuild_tells_programs_what_it_found(directory: Path) -> None:
    said = json.loads(run_here("rebuild", directory, "--json").stdout)
    assert (said["is_sound"], said["findings"]) == (True, [])
    assert (said["topics"], said["pending"], said["released"], said["cancelled"]) == (2, 19, 1, 1)


def test_lost_consumers_are_a_finding_and_begun_again_only_if_asked_to(directory: Path) -> None:
    for path in (directory / "consumers").glob("checkpoint.*"):
        path.unlink()
    result = run_here("check", directory)
    assert result.returncode == 1
    assert "it is not known what was acknowledged" in result.stdout and "1 finding" in result.stdout
    result = run_here("rebuild", directory)
    assert result.returncode == 1
    assert "--new-consumers" in one_line_on_stderr(result)
    result = run_here("rebuild", "--new-consumers", directory)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "every group begins again" in result.stdout and "all holds" in result.stdout
    assert list((directory / "consumers.before-rebuild").iterdir())
    assert run_here("check", directory).returncode == 0
    assert "stays as it is" in run_here("rebuild", "--new-consumers", directory).stdout


def test_rebuild_repairs_a_damaged_index(directory: Path) -> None:
    (entries,) = (directory / "index" / "entries").iterdir()
    _flip_byte(entries, 48 * 3 + 9)
    assert run_here("rebuild", directory).returncode == 0
    assert run_here("check", directory).returncode == 0


@pytest.mark.parametrize("which", [0, -1])
def test_rebuild_refuses_a_log_whose_first_or_last_file_is_missing(tmp_path: Path, which: int) -> None:
    directory = tmp_path / "data"
    with open_broker(directory, segment_bytes=1 << 20) as broker:
        for _ in range(30):
            broker.send([tidemill.Draft("t", bytes(10_000), delay_ms=86_400_000) for _ in range(10)])
    segments = sorted((directory / "log").glob("*.log"))
    assert len(segments) > 2
    segments[which].unlink()
    before = sorted(path.relative_to(directory) for path in directory.rglob("*"))
    result = run_here("rebuild", directory)
    assert result.returncode == 1
    assert "backup" in one_line_on_stderr(result)
    assert sorted(path.relative_to(directory) for path in directory.rglob("*")) == before


def test_rebuild_of_a_damaged_log_leaves_everything_as_it_was(directory: Path) -> None:
    before = {
        p.relative_to(directory): p.read_bytes() for p in (directory / "index").rglob("*") if p.is_file()
    }
    _flip_byte(_first_segment(directory), 1_000)
    result = run_here("rebuild", directory)
    assert result.returncode == 1
    assert "does not read back" in one_line_on_stderr(result)
    after = {
        p.relative_to(directory): p.read_bytes() for p in (directory / "index").rglob("*") if p.is_file()
    }
    assert after == before
    assert not list(directory.glob("*.before-rebuild"))


# -- bad usage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["nonsense"], ["check"], ["dump", "x", "--limit", "-1"], ["bench"]])
def test_bad_usage_is_one_line_and_exit_code_2(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert "--help" in one_line_on_stderr(result)


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--pipeline", "flink"],
        ["serve", "--clock", "sundial"],
        ["serve", "--lead", "soon"],
        ["serve", "--durability", "perhaps"],
        ["serve", "--shards", "0"],
        ["serve", "--spark-master", "nowhere"],
        ["serve", "--config", "no-such.toml"],
        ["demo", "--pipeline", "flink"],
        ["send", "t", "x", "--delay", "soon"],
        ["pending", "--endpoint", "no port"],
    ],
)
def test_a_value_that_cannot_be_is_bad_usage(arguments: list[str], tmp_path: Path) -> None:
    more = ["--data", str(tmp_path / "data")] if arguments[0] == "serve" else []
    result = run_here(*arguments, *more)
    assert result.returncode == 2, result.stderr
    one_line_on_stderr(result)


# -- the other timer store ------------------------------------------------------------------------


def test_check_and_rebuild_keep_a_directory_with_the_timer_store_it_has(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with open_broker(directory, timer_store="rocksdb", segment_bytes=1 << 20) as broker:
        broker.send([tidemill.Draft("t", b"", delay_ms=3_600_000) for _ in range(50)])
        assert broker.status().pipeline.store == "rocksdb"
    for command in ("check", "rebuild"):
        result = run_here(command, directory)
        assert result.returncode == 0, result.stdout + result.stderr
        assert "50 pending" in result.stdout
        names = {path.name for path in (directory / "timer" / "shard-000").iterdir()}
        assert "rocksdb" in names
        assert "wheel" not in names


def test_an_unknown_timer_store_is_refused_in_one_line(tmp_path: Path) -> None:
    result = run_here("serve", "--data", tmp_path / "data", "--timer-store", "redis")
    assert result.returncode == 2
    assert one_line_on_stderr(result) == "tidemill: timer-store 'redis' is unknown; use wheel or rocksdb"


# -- salvage --------------------------------------------------------------------------------------


def test_salvage_of_a_sound_directory_copies_it_whole(directory: Path, tmp_path: Path) -> None:
    result = run_here("salvage", directory, "--to", tmp_path / "new")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "19 pending" in result.stdout and "nothing is missing" in result.stdout
    assert run_here("check", tmp_path / "new").returncode == 0


def test_salvage_of_a_damaged_log_says_what_is_missing(directory: Path, tmp_path: Path) -> None:
    segment = _first_segment(directory)
    _flip_byte(segment, segment.read_bytes().index(b"at once"))
    refused = run_here("rebuild", directory)
    assert f"tidemill salvage {directory} --to NEW" in one_line_on_stderr(refused)
    result = run("salvage", directory, "--to", tmp_path / "new")
    assert result.returncode == 1
    assert f"{segment.name}: offset" in result.stdout and "does not read back" in result.stdout
    assert run_here("check", tmp_path / "new").returncode == 0
    with open_broker(tmp_path / "new") as broker:
        assert broker.status().pending == 19


def test_salvage_can_answer_in_json(directory: Path, tmp_path: Path) -> None:
    report = json.loads(run_here("salvage", directory, "--to", tmp_path / "new", "--json").stdout)
    assert report["is_whole"] is True
    assert (report["pending"], report["released"], report["cancelled"]) == (19, 1, 1)
    kept = json.loads((tmp_path / "new" / "salvage-report.json").read_text())
    assert kept["pending"] == 19


def test_salvage_into_a_directory_that_is_not_empty_is_bad_usage(directory: Path, tmp_path: Path) -> None:
    result = run_here("salvage", directory, "--to", tmp_path)
    assert result.returncode == 2
    assert "name" in one_line_on_stderr(result)
    assert run_here("salvage", directory).returncode == 2
