"""Set-up sees to PostgreSQL's server: found where Debian keeps it, else asked of apt, never left running."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_SCRIPTS = Path(__file__).parents[2] / "scripts"
_TOOLS = ("sh", "dirname", "mkdir", "tee", "cat", "touch", "chmod")


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine whose apt has PostgreSQL 17, and nothing on its path but a few tools."""
    for name in ("need_postgres.sh", "apt_install.sh"):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        shutil.copy(_SCRIPTS / name, tmp_path / "scripts" / name)
    (tmp_path / "bin").mkdir()
    for tool in _TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or tool)
    _program(tmp_path / "bin/id", "echo 0")
    initdb = tmp_path / "versions/17/bin/initdb"
    _program(
        tmp_path / "bin/apt-get",
        f'echo "$*" >>{tmp_path}/asked; [ "$1" = update ] ||'
        f" {{ mkdir -p {initdb.parent}; touch {initdb}; chmod +x {initdb}; }}",
    )
    return tmp_path


def _run(machine: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": str(machine / "bin"),
        "POSTGRES_VERSIONS": str(machine / "versions"),
        "POSTGRES_SETTINGS": str(machine / "etc"),
    }
    command = [machine / "scripts/need_postgres.sh"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_a_missing_server_is_installed_once_without_a_database_that_runs(machine: Path) -> None:
    said = _run(machine)
    assert said.returncode == 0, said.stderr
    assert said.stdout == f"{machine}/versions/17/bin/initdb\n"
    assert (machine / "etc/createcluster.conf").read_text() == "create_main_cluster = false\n"
    asked = (machine / "asked").read_text().splitlines()
    assert asked[-1] == "install -y -qq --no-install-recommends postgresql"
    assert _run(machine).stdout == said.stdout
    assert (machine / "asked").read_text().splitlines() == asked


def test_settings_of_the_machine_stay(machine: Path) -> None:
    (machine / "etc").mkdir()
    (machine / "etc/createcluster.conf").write_text("create_main_cluster = true\n")
    assert _run(machine).returncode == 0
    assert (machine / "etc/createcluster.conf").read_text() == "create_main_cluster = true\n"


def test_a_server_that_is_there_is_only_named(machine: Path) -> None:
    _program(machine / "bin/initdb", "")
    assert _run(machine).stdout == f"{machine}/bin/initdb\n"
    assert not (machine / "asked").exists()
    assert not (machine / "etc").exists()


@pytest.mark.parametrize("apt", ["exit 100", "exit 0", None])
def test_a_server_that_cannot_be_had_is_named(machine: Path, apt: str | None) -> None:
    os.unlink(machine / "bin/apt-get")
    if apt:
        _program(machine / "bin/apt-get", apt)
    said = _run(machine)
    assert said.returncode == 1
    assert "apt-get install postgresql" in said.stderr.splitlines()[-1]
    assert (machine / "etc").exists() == bool(apt)
