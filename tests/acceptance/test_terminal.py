"""Commands in a real terminal: the live picture, and the bars of what takes long."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tidemill
from acceptance.serving import Served
from http_broker import HttpBroker, http_broker
from tidemill.core.clock import stopwatch_s

_PATIENCE_S = 30.0


class Terminal:
    """A command with a terminal of its own, and what it has written so far."""

    def __init__(self, *arguments: str, endpoint: str = "") -> None:
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "TIDEMILL_ENDPOINT": endpoint, "COLUMNS": "120", "TERM": "xterm"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tidemill.cli.main", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
        )
        os.close(theirs)
        self.said = ""
        self._poll = select.poll()
        self._poll.register(self._ours, select.POLLIN)

    def read_until(self, words: str) -> None:
        """Read on until these words come; what came before them is forgotten."""
        until_s = stopwatch_s() + _PATIENCE_S
        while words not in self.said:
            assert stopwatch_s() < until_s, f"no {words!r} in {self.said[-2000:]!r}"
            if self._poll.poll(200):
                try:
                    self.said += os.read(self._ours, 65536).decode(errors="replace")
                except OSError:  # the command has ended
                    break
        assert words in self.said, self.said
        self.said = self.said.partition(words)[2]

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(_PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)


@contextmanager
def terminal(*arguments: str, endpoint: str = "") -> Iterator[Terminal]:
    made = Terminal(*arguments, endpoint=endpoint)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[HttpBroker]:
    with http_broker(tmp_path / "data") as served:
        yield served


def test_the_live_status_outlives_its_broker(broker: HttpBroker) -> None:
    with terminal("status", "--watch", endpoint=broker.endpoint) as screen:
        screen.read_until("Nothing was sent yet")
        with tidemill.Client(broker.endpoint) as client:
            client.send("orders", b"x", delay="30m")
        screen.read_until("1 fall due")
        screen.read_until("orders")
        broker.stop()
        screen.read_until("Looking again")
        broker.start()
        screen.read_until("1 fall due")
        assert screen.interrupt() == 0


def test_the_forecast_can_be_watched(broker: HttpBroker) -> None:
    with terminal("forecast", "--watch", endpoint=broker.endpoint) as screen:
        screen.read_until("nothing falls due within 1h")
        with tidemill.Client(broker.endpoint) as client:
            client.send("orders", b"x", delay="30m")
        screen.read_until("1 fall due")
        assert screen.interrupt() == 0


def test_a_file_is_scheduled_with_a_bar(broker: HttpBroker, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("body,delay_ms,key\n" + "".join(f"{n},3600000,k{n}\n" for n in range(500)))
    with terminal("schedule", str(rows), "--topic", "orders", endpoint=broker.endpoint) as screen:
        screen.read_until("100%")
        screen.read_until("500 stored, 0 refused")
        assert screen.process.wait(_PATIENCE_S) == 0


def test_a_backup_is_copied_with_a_bar(broker: HttpBroker, tmp_path: Path) -> None:
    with terminal("backup", str(tmp_path / "copy"), endpoint=broker.endpoint) as screen:
        screen.read_until("copying the log")
        screen.read_until("0 wait")
        assert screen.process.wait(_PATIENCE_S) == 0


def test_reading_the_log_at_the_start_is_shown(tmp_path: Path) -> None:
    served = Served(tmp_path / "data")
    with tidemill.open(tmp_path / "data") as broker:
        for _ in range(40):
            broker.send([tidemill.Draft("orders", bytes(1000), delay_ms=3_600_000)] * 500)
    for derived in (tmp_path / "data" / "index").rglob("*"):
        if derived.is_file():
            derived.unlink()
    flags = ["--data", str(tmp_path / "data"), "--port", str(served.port), "--flight-port", "-1"]
    with terminal("serve", *flags, "--pipeline", "embedded") as screen:
        screen.read_until("reading the log")
        screen.read_until("serves on")
        screen.process.send_signal(signal.SIGTERM)
        assert screen.process.wait(_PATIENCE_S) == 0
