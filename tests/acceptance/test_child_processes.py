"""A command that starts a broker of its own stops it, whether the command ends in order or is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from acceptance.serving import PATIENCE_S, wait_until
from tidemill.core.processes import command_line, descendants, is_alive, kill

pytestmark = pytest.mark.slow


@contextmanager
def _measuring(place: Path) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """`tidemill bench server`, caught while its broker runs: the process, and those below it."""
    # A test run under nohup ignores hang-ups, and would have its children ignore them.
    command = ["env", "--default-signal=HUP,INT", sys.executable, "-m", "tidemill"]
    command += ["bench", "server", "--quick", "--json", "--data", str(place)]
    with place.with_suffix(".errors").open("wb") as errors:
        bench = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True)
    below: list[int] = []
    try:
        wait_until(lambda: _serves(bench.pid) or bench.poll() is not None, "the broker of the bench")
        assert bench.poll() is None, "it was over before the test looked"
        below += descendants(bench.pid)
        yield bench, below
    finally:
        bench.kill()
        bench.wait()
        kill(filter(is_alive, below))


def _serves(pid: int) -> bool:
    return any("envoy" in command_line(below) for below in descendants(pid))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_makes_it_remove_what_it_made(tmp_path: Path, number: signal.Signals) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with _measuring(place) as (bench, below):
        # Ctrl-C in a terminal goes to all that belong to it.
        (os.killpg if number == signal.SIGINT else os.kill)(bench.pid, number)
        assert bench.wait(PATIENCE_S) == 128 + number
        assert not any(map(is_alive, below))
        assert list(place.iterdir()) == []
        said = place.with_suffix(".errors").read_text()
        assert said in ("", "tidemill: interrupted\n")


def test_killed_it_leaves_no_process_behind(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with _measuring(place) as (bench, below):
        bench.kill()
        wait_until(lambda: not any(map(is_alive, below)), "its processes end by themselves")
