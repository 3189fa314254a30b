"""`tidemill demo` as a process: it exits 0 only if all held."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from acceptance.command_line import run
from tidemill.server.pipeline_command import why_not_spark

pytestmark = pytest.mark.slow


def test_the_demo_holds_and_can_leave_its_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    result = run("demo", "--keep", timeout_s=150)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Everything held." in result.stdout
    assert "BROKEN" not in result.stdout
    assert "released (too late" in result.stdout
    ways = re.findall(r"^(through Spark|near|through the takeover) +(\d+)", result.stdout, re.MULTILINE)
    if not why_not_spark():
        assert len(ways) == 3
        assert all(int(count) for _, count in ways)
    (kept,) = re.findall(r"The data directory is (\S+)", result.stdout)
    assert run("check", kept).returncode == 0
