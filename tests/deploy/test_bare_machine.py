"""`make bare-machine` where it cannot run: one line that says why, and no failure."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_NEEDED = ("dirname", "sh", "mkdir", "sort", "rm")


@pytest.mark.parametrize(
    ("commands", "reason"),
    [
        ({"id": "echo 1000"}, "root is needed"),
        ({"id": "echo 0"}, "apt"),
        ({"id": "echo 0", "apt-get": "exit 0", "unshare": "exit 1"}, "namespaces"),
        ({"id": "echo 0", "apt-get": "exit 0", "unshare": "exit 0"}, "no archive"),
    ],
)
def test_it_says_why_it_is_skipped(tmp_path: Path, commands: dict[str, str], reason: str) -> None:
    place = tmp_path / "clone"
    (place / "scripts").mkdir(parents=True)
    shutil.copy(_ROOT / "scripts" / "bare_machine.sh", place / "scripts")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in _NEEDED:
        (tools / name).symlink_to(shutil.which(name) or name)
    for name, does in commands.items():
        (tools / name).write_text(f"#!/bin/sh\n{does}\n")
        (tools / name).chmod(0o755)
    said = subprocess.run(
        [place / "scripts" / "bare_machine.sh", "trixie"],
        env={**os.environ, "PATH": str(tools)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert said.returncode == 0, said.stderr
    assert said.stderr.startswith("bare-machine: trixie: skipped: ")
    assert reason in said.stderr and said.stderr.count("\n") == 1
