"""`tidemill demo` as a process in a terminal: it exits 0 only if all held, and with --keep it runs on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tidemill
from acceptance.command_line import run
from acceptance.terminal import terminal
from tidemill.cli.demo.command import REMINDERS
from tidemill.server.process.pipeline_command import why_not_spark

pytestmark = pytest.mark.slow


def test_the_demo_holds_and_can_be_played_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with terminal("demo", "--keep") as screen:
        screen.read_until("Watch it in a browser:")
        screen.read_until("how late they came")
        screen.read_until("Everything held.")
        assert "BROKEN" not in screen.all_said
        screen.read_until("Ctrl-C stops it.")
        said = _plain(screen.all_said)
        (kept,) = re.findall(r"The data directory is (\S+)", said)
        (endpoint,) = re.findall(r"TIDEMILL_ENDPOINT=([0-9.:]+)", said)
        with tidemill.Client(endpoint) as client:
            assert client.status().pending >= REMINDERS - 1
            assert client.cancel_where("reminders", key=f"reminder-{REMINDERS}") == 1
        assert screen.interrupt() == 0
        ways = re.findall(r"(through Spark|near|through the takeover) +(\d+)", said)
    if not why_not_spark():
        assert {way for way, _ in ways} == {"through Spark", "near", "through the takeover"}
    assert run("check", kept).returncode == 0


def _plain(text: str) -> str:
    """Without what colours it and moves the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
