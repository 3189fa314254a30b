"""Hold and resume over HTTP: the routes, what status and metrics say, and the client's verbs."""

from __future__ import annotations

import pytest

from helpers.asgi_caller import AsgiCaller
from helpers.open_app import OpenApp
from helpers.small_broker import START_MS

_NOTHING = {"releases_since_ms": None, "absorbing_since_ms": None}


@pytest.fixture
def http(small):
    with AsgiCaller(OpenApp(small.broker)) as client:
        yield client


@pytest.mark.parametrize("what", ["releases", "absorbing"])
def test_it_is_held_and_resumed(http, what) -> None:
    held = _NOTHING | {f"{what}_since_ms": START_MS}
    for _ in range(2):
        answer = http.post(f"/v1/holds/{what}/hold", json={})
        assert (answer.status_code, answer.json()) == (200, held)
    assert http.get("/v1/status").json()["holds"] == held
    for _ in range(2):
        answer = http.post(f"/v1/holds/{what}/resume", json={})
        assert (answer.status_code, answer.json()) == (200, _NOTHING)
    assert http.get("/v1/status").json()["holds"] == _NOTHING


@pytest.mark.parametrize("verb", ["hold", "resume"])
def test_something_unknown_is_refused(http, verb) -> None:
    answer = http.post(f"/v1/holds/sends/{verb}", json={})
    assert answer.status_code == 400
    assert answer.json()["message"] == "'sends' cannot be held or resumed; use releases or absorbing"


def test_status_and_metrics_say_what_is_held_and_what_waits_for_it(http, small) -> None:
    http.post("/v1/holds/releases/hold", json={})
    http.post("/v1/messages", json={"topic": "orders", "body": "x", "delay_ms": 1_000})
    small.advance(2_000)
    assert http.get("/v1/status").json()["waits"] == [{"waits_for": "hold", "topic": "", "messages": 1}]
    text = http.get("/metrics").text
    assert 'tidemill_held{what="releases"} 1.0' in text
    assert 'tidemill_held{what="absorbing"} 0.0' in text
    assert 'tidemill_release_waiting_messages{waits_for="hold"} 1.0' in text
    assert http.get("/healthz").status_code == 200  # an operator wanted it


def test_the_description_has_both_verbs(http) -> None:
    spec = http.get("/openapi.json").json()
    for verb in ("hold", "resume"):
        operation = spec["paths"][f"/v1/holds/{{what}}/{verb}"]["post"]
        assert "releases" in operation["description"]
        assert "absorbing" in operation["description"]
