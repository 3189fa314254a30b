"""`tidemill bench server`: its figures are explained, its parts reckon rightly, and the whole runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidemill.cli.bench.figures import SERVER_FIGURES
from tidemill.cli.bench.server_child import requests_of
from tidemill.cli.bench.server_load import Load, _protoset
from tidemill.cli.main import run
from tidemill.server.grpc.protocol import service

_BENCHMARKS = Path(__file__).resolve().parents[3] / "docs" / "benchmarks.md"


def test_every_figure_is_explained() -> None:
    text = _BENCHMARKS.read_text()
    assert not [figure.name for figure in SERVER_FIGURES if f"`{figure.name}`" not in text]


def test_a_load_knows_its_rate_and_percentiles() -> None:
    load = Load(200, 2.0, [float(n) for n in range(100)])
    assert load.per_s == 100
    assert load.percentile_ms(0.99) == 99.0
    assert load.percentile_ms(0.5) == 50.0


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
    assert run(["bench", "server", "--ghz"]) != 0
    assert "ghz is not on the path" in capsys.readouterr().err


def test_the_quick_bench_gives_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "server", "--quick", "--json", "--data", str(tmp_path)]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert list(figures) == [*(figure.name for figure in SERVER_FIGURES), "send_p99_ms_while_releasing"]
    assert all(value >= 0 for value in figures.values())
    assert not list(tmp_path.iterdir())
