"""`python -m benchmarks`: its README names the commands, and errors look as those of `tidemill` do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from benchmarks.__main__ import _APP, run

_ROOT = Path(__file__).resolve().parents[2]
_README = (_ROOT / "benchmarks" / "README.md").read_text()


def test_the_readme_names_every_command_and_script_and_no_other() -> None:
    commands = set(typer.main.get_command(_APP).commands)  # type: ignore[attr-defined]
    assert set(re.findall(r"python -m benchmarks ([a-z]+)", _README)) == commands
    scripts = re.findall(r"python -m benchmarks\.([a-z_]+)", _README)
    assert scripts
    assert not [name for name in scripts if not (_ROOT / "benchmarks" / f"{name}.py").exists()]


@pytest.mark.parametrize("command", ["faults", "downtime"])
def test_an_impossible_master_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--spark-master", "nowhere"]) == 2
    assert "spark-master 'nowhere' is unknown" in capsys.readouterr().err


def test_it_runs_from_the_root_of_the_repository() -> None:
    command = [sys.executable, "-m", "benchmarks", "compare", "--nonsense"]
    said = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
    assert said.returncode == 2
    assert said.stderr.count("\n") == 1
    assert "see `python -m benchmarks compare --help`" in said.stderr
