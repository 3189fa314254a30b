"""Set-up prints one line for each thing it installs, and the demo installs nothing that only tests need."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_TOOLS = ("sh", "dirname", "mkdir", "tee", "cat", "touch", "chmod", "sed", "head")
_PAGES = "for line in 1 2 3 4 5; do echo Unpacking $line; echo Setting up $line >&2; done"


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with nothing on its path but a few tools and an apt that prints pages."""
    shutil.copytree(_ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "bin").mkdir()
    (tmp_path / ".venv").mkdir()
    for tool in _TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or tool)
    _program(tmp_path / "bin/id", "echo 0")
    _program(tmp_path / "bin/apt-get", f'echo "$*" >>{tmp_path}/asked; {_PAGES}')
    return tmp_path


def _run(machine: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": str(machine / "bin"),
        "JAVA_VERSIONS": str(machine / "jvm"),
        "POSTGRES_VERSIONS": str(machine / "versions"),
        "POSTGRES_SETTINGS": str(machine / "etc"),
    }
    return subprocess.run(
        [machine / "scripts" / command[0], *command[1:]],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_installation_prints_one_line_and_keeps_what_apt_prints(machine: Path) -> None:
    said = _run(machine, "apt_install.sh", "chromium", "libatomic1")
    assert (said.returncode, said.stdout) == (0, "")
    assert said.stderr == "setup: installing chromium libatomic1 with apt-get\n"
    log = (machine / "build/apt.log").read_text()
    assert "# apt-get install -y -qq --no-install-recommends chromium libatomic1\n" in log
    assert log.count("Unpacking 5\n") == log.count("Setting up 5\n") == 2  # the update, the installation


def test_an_installation_that_fails_names_the_file_with_what_apt_prints(machine: Path) -> None:
    _program(machine / "bin/apt-get", "echo E: no such package >&2; exit 100")
    said = _run(machine, "apt_install.sh", "chromium")
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.splitlines() == [
        "setup: installing chromium with apt-get",
        "setup: apt-get could not install chromium; its output is in build/apt.log",
    ]
    assert "E: no such package\n" in (machine / "build/apt.log").read_text()


@pytest.mark.parametrize(("available", "installed"), [("new", "new"), ("old", "old"), ("none", "newest")])
def test_of_several_packages_the_first_available_one_is_installed(
    machine: Path, available: str, installed: str
) -> None:
    _program(
        machine / "bin/apt-get",
        f'for last; do :; done; [ "$1" = update ] || [ "$last" = {available} ] || exit 100; {_PAGES}',
    )
    said = _run(machine, "apt_install.sh", "--any", "old", "new", "newest")
    assert said.stderr.splitlines()[0] == f"setup: installing {installed} with apt-get"
    assert said.returncode == (100 if available == "none" else 0) // 100


def test_java_is_one_installation_where_debian_has_another_version(machine: Path) -> None:
    java = machine / "bin/java"
    _program(
        machine / "bin/apt-get",
        'for last; do :; done; [ "$1" = update ] || [ "$last" = openjdk-21-jre-headless ] || exit 100\n'
        f"{_PAGES}\n"
        f'[ "$1 $2" != "install -y" ] || '
        f"{{ printf '#!/bin/sh\\necho version \\\\\"21.0.1\\\\\" >&2\\n' >{java}; chmod +x {java}; }}",
    )
    said = _run(machine, "need_java.sh")
    assert (said.returncode, said.stdout) == (0, f"{java}\n"), said.stderr
    assert said.stderr == "setup: installing openjdk-21-jre-headless with apt-get\n"


def test_what_tests_need_and_cannot_be_had_is_named_and_set_up_goes_on(machine: Path) -> None:
    os.unlink(machine / "bin/apt-get")
    said = _run(machine, "setup_tests.sh")
    assert (said.returncode, said.stdout) == (0, "")
    lines = said.stderr.splitlines()
    assert [line for line in lines if "continuing without" in line] == [
        "setup: continuing without Chromium: the browser tests are skipped",
        "setup: continuing without PostgreSQL: the tests that need it are skipped",
    ]
    assert (machine / ".venv/.ready-tests").exists()


def _made(target: str, clone: Path) -> str:
    shutil.copytree(_ROOT / "scripts", clone / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(_ROOT / name, clone)
    command = ["make", "--dry-run", "--no-print-directory", target]
    said = subprocess.run(command, cwd=clone, capture_output=True, text=True, timeout=60, check=True)
    return said.stdout


@pytest.mark.parametrize("target", ["setup", "demo", "quick", "lint", "bench"])
def test_what_only_tests_need_is_not_installed_for(target: str, tmp_path: Path) -> None:
    made = _made(target, tmp_path)
    assert made.startswith("scripts/setup.sh\n")
    assert "setup_tests" not in made
    setup = (_ROOT / "scripts/setup.sh").read_text()
    assert "need_java" in setup
    assert "chromium" not in setup
    assert "postgres" not in setup


@pytest.mark.parametrize("target", ["test", "pytest", "full"])
def test_what_tests_need_is_installed_for(target: str, tmp_path: Path) -> None:
    lines = _made(target, tmp_path).splitlines()
    assert lines.index("scripts/setup.sh") < lines.index("scripts/setup_tests.sh")
