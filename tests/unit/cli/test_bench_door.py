"""`tidemill bench door`: its figures are explained, its parts reckon rightly, and the whole runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidemill.cli.bench.door_child import requests_of
from tidemill.cli.bench.door_load import Load, _protoset
from tidemill.cli.bench.door_peers import PEERS, peers_here
from tidemill.cli.bench.figures import DOOR_FIGURES
from tidemill.cli.main import run
from tidemill.server.grpc.protocol import service

_BENCHMARKS = Path(__file__).resolve().parents[3] / "docs" / "benchmarks.md"


def test_every_figure_is_explained() -> None:
    text = _BENCHMARKS.read_text()
    names = [figure.name for figure in DOOR_FIGURES] + [name for peer in PEERS for name in peer.figures()]
    assert not [name for name in names if f"`{name}`" not in text]


def test_a_load_knows_its_rate_and_percentiles() -> None:
    load = Load(200, 2.0, [float(n) for n in range(100)])
    assert load.per_s == 100
    assert load.percentile_ms(0.99) == 99.0
    assert load.percentile_ms(0.5) == 50.0


def test_a_peer_says_how_often_it_is_outdone() -> None:
    said = PEERS[0].sentence(
        {"peer_redis_send_per_s": 5000.0, "peer_redis_unsynced_send_per_s": 8000.0}, 15000.0
    )
    assert "5,000 /s; Tidemill does 3.0 times that" in said
    assert "8,000 /s, Tidemill 1.9 times that; where the target was set, it was 1.7 to 2.9 times" in said


def test_every_request_has_an_id_of_its_own() -> None:
    made = [service.SendMessageRequest.FromString(content[5:]) for content in requests_of("t", 3, 1000)]
    ids = {request.messages[0].system_properties.message_id for request in made}
    assert len(ids) == 3
    assert {len(request.messages[0].body) for request in made} == {100}


def test_the_descriptors_for_ghz_hold_the_service() -> None:
    assert b"MessagingService" in _protoset()


def test_asking_for_ghz_where_there_is_none_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert run(["bench", "door", "--ghz"]) != 0
    assert "ghz is not on the path" in capsys.readouterr().err


@pytest.mark.slow
def test_the_quick_bench_gives_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "door", "--quick", "--json", "--data", str(tmp_path)]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert list(figures)[: len(DOOR_FIGURES)] == [figure.name for figure in DOOR_FIGURES]
    peers = [name for peer in peers_here() for name in peer.figures()]
    assert list(figures)[len(DOOR_FIGURES) :] == ["send_p99_ms_while_releasing", *peers]
    assert all(value >= 0 for value in figures.values())
    assert not list(tmp_path.iterdir())
