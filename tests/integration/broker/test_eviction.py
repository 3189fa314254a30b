"""A shard is taken from a process that does not release it. Real processes hold the lock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidemill.broker.control.eviction import free_shard
from tidemill.core.processes import process_started
from tidemill.log.disk import RealDisk
from tidemill.timer.shard_lock import LOCK_NAME, take_shard_lock

_HOLD = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(fd, fcntl.LOCK_EX)
os.ftruncate(fd, 0)
os.pwrite(fd, sys.argv[2].replace("SELF", str(os.getpid())).encode(), 0)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def _holder(shard: Path, note: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _HOLD, str(shard / LOCK_NAME), note]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    directory = tmp_path / "shard-000"
    directory.mkdir()
    (directory / "cursor.1").write_text("kept")
    return directory


@pytest.mark.parametrize("note", ["pid SELF started 0", "", "pid 999999999 started 5", "nonsense"])
def test_the_process_that_holds_a_shard_is_ended_whatever_its_note_says(shard: Path, note: str) -> None:
    with _holder(shard, note) as process:
        free_shard(RealDisk(), shard, epoch=2)
        assert process.wait(10) == -9
    assert (shard / "cursor.1").exists()
    take_shard_lock(RealDisk(), shard).release()


def test_a_stranger_with_the_id_of_an_earlier_holder_is_left_alone(shard: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with _holder(other, "") as stranger:
        started_then = process_started(stranger.pid) - 1
        with _holder(shard, f"pid {stranger.pid} started {started_then}"):
            free_shard(RealDisk(), shard, epoch=2)
        assert stranger.poll() is None


def test_we_do_not_end_ourselves(shard: Path) -> None:
    lock = take_shard_lock(RealDisk(), shard)
    free_shard(RealDisk(), shard, epoch=7)
    lock.release()
    assert not shard.exists()
    assert (shard.with_name("shard-000.aside-7") / "cursor.1").exists()


def test_a_free_shard_stays_as_it_is(shard: Path) -> None:
    take_shard_lock(RealDisk(), shard).release()
    free_shard(RealDisk(), shard, epoch=2)
    assert (shard / "cursor.1").read_text() == "kept"
