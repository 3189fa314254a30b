"""Set-up sees to Python's shared library: it asks apt for the package, and names it if that fails."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_SCRIPTS = Path(__file__).parents[2] / "scripts"
_PACKAGE = "libpython3.13"


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A project whose Python lacks the library until the file `installed` is there, on a machine with apt."""
    for name in ("need_libpython.sh", "apt_install.sh"):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        shutil.copy(_SCRIPTS / name, tmp_path / "scripts" / name)
    installed = tmp_path / "installed"
    _program(tmp_path / ".venv/bin/python", f"[ -e {installed} ] || echo {_PACKAGE}")
    _program(tmp_path / "bin/id", "echo 0")
    _program(
        tmp_path / "bin/apt-get", f'echo "$*" >>{tmp_path}/asked; [ "$1" = update ] || touch {installed}'
    )
    return tmp_path


def _run(machine: Path) -> subprocess.CompletedProcess[str]:
    path = f"{machine}/bin:{os.environ['PATH']}"
    command = [machine / "scripts/need_libpython.sh"]
    return subprocess.run(
        command, env={"PATH": path}, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_library_that_is_missing_is_installed_once(machine: Path) -> None:
    assert _run(machine).returncode == 0
    asked = (machine / "asked").read_text().splitlines()
    assert asked == ["update -qq", f"install -y -qq --no-install-recommends {_PACKAGE}"]
    assert _run(machine).returncode == 0
    assert (machine / "asked").read_text().splitlines() == asked


@pytest.mark.parametrize("apt", ["exit 100", "exit 0"])
def test_a_package_that_cannot_be_had_or_does_not_help_is_named(machine: Path, apt: str) -> None:
    _program(machine / "bin/apt-get", apt)
    said = _run(machine)
    assert said.returncode == 1
    assert said.stderr.splitlines()[-1].endswith(f"install it (apt-get install {_PACKAGE})")
