"""`python -m benchmarks sends`: its figures are explained, the ratios are right, and the whole runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import run
from benchmarks.peers import PEERS, peers_here
from benchmarks.sends import OURS

_BENCHMARKS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"


def test_every_figure_is_explained() -> None:
    text = _BENCHMARKS.read_text()
    names = [OURS, *(name for peer in PEERS for name in peer.figures())]
    assert not [name for name in names if f"`{name}`" not in text]


def test_a_peer_says_how_often_it_is_outdone() -> None:
    said = PEERS[0].sentence(
        {"peer_redis_send_per_s": 5000.0, "peer_redis_unsynced_send_per_s": 8000.0}, 15000.0
    )
    assert "5,000 /s; Tidemill does 3.0 times that" in said
    assert "8,000 /s, Tidemill 1.9 times that; where the target was set, it was 1.7 to 2.9 times" in said


@pytest.mark.slow
def test_the_quick_run_gives_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sends", "--quick", "--json", "--data", str(tmp_path)]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert list(figures) == [OURS, *(name for peer in peers_here() for name in peer.figures())]
    assert all(value > 0 for value in figures.values())
    assert not list(tmp_path.iterdir())
