"""Dashboard, alert rules and reference, each compared with what a served broker really exposes."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

import tidemill
from acceptance.serving import Served
from deploy.promql import Named, labels_by_sample, named_in
from tidemill.server.grpc.protocol import SERVICE, service

_ROOT = Path(__file__).resolve().parent.parent.parent
_DEPLOY = _ROOT / "deploy"
_ALERTS = yaml.safe_load((_DEPLOY / "prometheus" / "alerts.yml").read_text())
_DASHBOARD = json.loads((_DEPLOY / "grafana" / "dashboards" / "tidemill.json").read_text())


def _rules() -> list[dict[str, Any]]:
    return [rule for group in _ALERTS["groups"] for rule in group["rules"]]


def _panels() -> list[dict[str, Any]]:
    return [panel for panel in _DASHBOARD["panels"] if panel["type"] != "row"]


def _dashboard_expressions() -> list[str]:
    panels = [target["expr"] for panel in _panels() for target in panel["targets"]]
    variables = [v["query"]["query"] for v in _DASHBOARD["templating"]["list"] if v["type"] == "query"]
    return [*panels, *variables, *(a["expr"] for a in _DASHBOARD["annotations"]["list"])]


@pytest.fixture(scope="module")
def exposition(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What a broker says that has met every kind of figure: a release, a group, a gRPC call, a refusal."""
    served = Served(tmp_path_factory.mktemp("metrics") / "data", "--pipeline", "embedded").start()
    with tidemill.Client(served.endpoint) as client:
        client.send("orders", b"now", delay=0)
        next(iter(client.receive("orders", group="closers", wait="10s", stop_when_idle=True)))
    with grpc.insecure_channel(served.endpoint) as channel:
        request = service.QueryRouteRequest()
        request.topic.name = "nowhere"
        channel.unary_unary(
            SERVICE + "QueryRoute", request_serializer=service.QueryRouteRequest.SerializeToString
        )(request, timeout=10)
    with urllib.request.urlopen(f"http://{served.endpoint}/metrics", timeout=10) as answer:
        yield answer.read().decode()
    served.stop()


@pytest.fixture(scope="module")
def promtool() -> str:
    found = subprocess.run([_ROOT / "scripts" / "need_promtool.sh"], capture_output=True, text=True)
    if found.returncode:
        pytest.skip("promtool is not here and cannot be fetched; apt-get install prometheus")
    return found.stdout.strip()


def _run(*command: str | Path, given: str = "") -> None:
    said = subprocess.run(command, input=given, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr


def _named(expressions: list[str]) -> set[Named]:
    return {one for expression in expressions for one in named_in(expression)}


def _assert_exposed(expressions: list[str], exposition: str) -> None:
    samples, named = labels_by_sample(exposition), _named(expressions)
    assert named
    assert not [one.metric for one in named if one.metric not in samples], "no such metric"
    assert not [one for one in named if not one.labels <= samples[one.metric]], "no such label"


def test_every_metric_of_the_dashboard_is_exposed(exposition: str) -> None:
    _assert_exposed(_dashboard_expressions(), exposition)


def test_every_metric_of_the_alerts_is_exposed(exposition: str) -> None:
    _assert_exposed([rule["expr"] for rule in _rules()], exposition)


def test_every_metric_is_shown_or_watched(exposition: str) -> None:
    expressions = [*_dashboard_expressions(), *(rule["expr"] for rule in _rules())]
    named = {one.metric for one in _named(expressions)}
    silent = {
        name
        for name in labels_by_sample(exposition)
        if name.startswith("tidemill_") and not re.search(r"_(sum|count)$", name) and name not in named
    }
    # The first is the same figure as the histogram's; the second explains a backlog.
    assert silent == {"tidemill_lateness_p99_seconds", "tidemill_topic_paused"}


def test_the_dashboard_is_whole() -> None:
    ids = [panel["id"] for panel in _DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in _panels():
        assert panel["description"], panel["title"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24, panel["title"]
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in _DASHBOARD["panels"]}
    assert len(places) == len(ids), "two panels lie on each other"


def test_every_alert_says_what_to_do() -> None:
    for rule in _rules():
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert {"summary", "action"} <= set(rule["annotations"]), rule["alert"]


def test_every_alert_is_played() -> None:
    tests = (_DEPLOY / "prometheus" / "alerts_test.yml").read_text()
    for rule in _rules():
        assert tests.count(rule["alert"]) == 2, f"{rule['alert']}: once calm, once firing"


def test_promtool_accepts_the_exposition(exposition: str, promtool: str) -> None:
    ours = "".join(line + "\n" for line in exposition.splitlines() if "tidemill_" in line)
    _run(promtool, "check", "metrics", given=ours)


def test_promtool_accepts_and_plays_the_alerts(promtool: str) -> None:
    _run(promtool, "check", "config", _DEPLOY / "prometheus" / "prometheus.yml")
    _run(promtool, "test", "rules", _DEPLOY / "prometheus" / "alerts_test.yml")


def test_promtool_accepts_the_dashboards_expressions(promtool: str, tmp_path: Path) -> None:
    expressions = [target["expr"] for panel in _panels() for target in panel["targets"]]
    filled = [e.replace("$__rate_interval", "5m").replace("$instance", ".*") for e in expressions]
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(filled)]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    _run(promtool, "check", "rules", path)
