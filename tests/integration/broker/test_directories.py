"""Which directory may become a data directory: an empty one; nothing is written into any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.small_broker import SmallBroker
from tidemill.broker.embedded import open_broker
from tidemill.core.errors import StorageError
from tidemill.core.model import Draft
from tidemill.testing import FaultPlan, FaultyDisk, SimulatedCrash


def _tree(directory: Path) -> list[tuple[str, bytes]]:
    return [(str(path), path.read_bytes() if path.is_file() else b"") for path in directory.rglob("*")]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ((".git/config", "README.md", "src/main.py"), r"it holds \.git, README\.md, src\."),
        (("a", "b", "c", "d", "e"), "it holds a, b, c and 2 more"),
        (("log/app.log", "notes.txt"), r"it holds log, notes\.txt\."),
        (("log/app.log",), r"it holds log\."),
        (("index/index.html",), r"it holds index\."),
        (("tls/server.key", "tls/key.pem"), r"it holds tls\."),
        (("consumers/checkpoint.1", "consumers/list.csv"), r"it holds consumers\."),
    ],
)
def test_a_directory_with_other_files_is_refused_and_nothing_is_written(tmp_path, names, found):
    directory = tmp_path / "project"
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("somebody's")
    before = _tree(directory)
    with pytest.raises(StorageError, match=f"project is not empty and not a data directory: {found}"):
        open_broker(directory)
    assert _tree(directory) == before


def test_what_a_process_killed_at_its_start_has_made_is_no_other_file(tmp_path):
    directory = tmp_path / "data"
    for name in ("LOCK", "consumers/checkpoint.1", "tls/key.new", "tls/live/secret.json"):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(b"")
    with open_broker(directory) as broker:
        broker.send([Draft("t", b"x")])


@pytest.mark.parametrize("crash_at", range(1, 9))
def test_a_start_that_is_killed_and_a_power_cut_after_the_next_leave_what_was_sent(tmp_path, crash_at):
    disk = FaultyDisk(1)
    disk.arm(FaultPlan(crash_at=crash_at))
    with pytest.raises(SimulatedCrash):
        SmallBroker(tmp_path / "data", disk=disk)
    small = SmallBroker(tmp_path / "data", disk=disk.crash(power_cut=False))
    small.send("t", b"x")
    small.kill_and_open(power_cut=True)
    assert small.bodies("t") == [b"x"]
    small.close()


def test_a_new_file_system_is_empty(tmp_path):
    (tmp_path / "disk" / "lost+found").mkdir(parents=True)
    with open_broker(tmp_path / "disk") as broker:
        broker.send([Draft("t", b"x")])
    open_broker(tmp_path / "disk").close()


@pytest.mark.parametrize("name", ["log", "index", "timer"])
def test_a_part_may_be_a_new_file_system_of_its_own(tmp_path, name):
    (tmp_path / "data" / name / "lost+found").mkdir(parents=True)
    with open_broker(tmp_path / "data") as broker:
        broker.send([Draft("t", b"x")])


def test_a_data_directory_may_hold_other_files_too(small: SmallBroker):
    small.send("t", b"x")
    small.close()
    (small.directory / "NOTES.md").write_text("ours")
    small.open()
    assert small.bodies("t") == [b"x"]


def test_a_directory_that_lost_its_identity_is_named_as_such_and_not_as_foreign(small: SmallBroker):
    small.send("t", b"x")
    small.close()
    (small.directory / "NOTES.md").write_text("ours")
    kept = {path: path.read_bytes() for path in small.directory.glob("identity.*")}
    for path in kept:
        path.unlink()
    with pytest.raises(StorageError, match="its identity file is missing or damaged"):
        small.open()
    for path, content in kept.items():
        path.write_bytes(content)
    small.open()
