"""The file of `serve --config`: its options are defaults, flags win over them, and a mistake is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidemill.cli import main, serve


class _Planned:
    def __init__(self) -> None:
        self.plans: list[Any] = []

    async def run(self, plan: Any) -> int:
        self.plans.append(plan)
        return 0


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> _Planned:
    """Takes what would be served instead of serving it."""
    planned = _Planned()
    monkeypatch.setattr(serve, "_run", planned.run)
    return planned


def _file(folder: Path, content: str) -> str:
    path = folder / "serve.toml"
    path.write_text(content)
    return str(path)


def test_the_options_of_a_file_are_defaults_and_flags_win(planned: _Planned, tmp_path: Path) -> None:
    file = _file(
        tmp_path,
        f'data = "{tmp_path}/data"\nport = 0\npipeline = "embedded"\nauto-create = true\n'
        'max_connections = 7\nlead = "9s"\nbody_bytes_max = 1000\nrate_per_client = 2.5\n',
    )
    assert main.run(["serve", "--config", file, "--max-connections", "8", "--lead", "11s"]) == 0
    (plan,) = planned.plans
    assert (plan.data, plan.creates_topics, plan.connections_max) == (f"{tmp_path}/data", True, 8)
    assert (plan.pipeline_command, plan.rate_per_client) == ((), 2.5)
    assert (plan.settings.lead_ms, plan.settings.body_bytes_max) == (11_000, 1000)


def test_the_limit_of_a_tick_is_a_flag_that_wins_over_the_file(planned: _Planned, tmp_path: Path) -> None:
    file = _file(tmp_path, f'data = "{tmp_path}/data"\npipeline = "embedded"\ndue_per_tick_max = 7\n')
    assert main.run(["serve", "--config", file]) == 0
    assert main.run(["serve", "--config", file, "--due-per-tick-max", "9"]) == 0
    assert [plan.settings.due_per_tick_max for plan in planned.plans] == [7, 9]


def test_a_limit_of_a_tick_that_is_no_count_is_refused_in_one_line(
    planned: _Planned, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(tmp_path / "data")
    assert main.run(["serve", "--data", data, "--due-per-tick-max", "-3"]) == 2
    said = capsys.readouterr().err.strip()
    assert "due-per-tick-max (due_per_tick_max) -3 is not possible; use 0 or more" in said
    assert "\n" not in said
    assert main.run(["serve", "--data", data, "--due-per-tick-max", "many"]) == 2
    assert "--due-per-tick-max" in capsys.readouterr().err
    assert not planned.plans


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("prt = 1\n", "unknown setting 'prt'; known are auth, "),
        ('port = "soon"\n', "--port"),
        ("port = \n", "cannot read settings"),
        ('config = "another.toml"\n', "unknown setting 'config'"),
        ("lead = 1\n", "too short"),
    ],
)
def test_a_mistake_in_the_file_is_reported(
    planned: _Planned, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, words: str
) -> None:
    assert main.run(["serve", "--data", str(tmp_path / "data"), "--config", _file(tmp_path, content)]) == 2
    assert words in capsys.readouterr().err
    assert not planned.plans
