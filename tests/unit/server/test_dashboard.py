"""The dashboard's files and the looks behind its pages."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

import tidemill.server
from helpers.asgi_caller import AsgiCaller
from helpers.open_app import OpenApp
from helpers.small_broker import START_MS
from tidemill.server.http.dashboard import PREFIX, Dashboard

_WEB = Path(tidemill.server.__file__).parent / "web"
_OWN = sorted(
    path for path in _WEB.rglob("*") if path.suffix in (".js", ".css", ".html") and "vendor" not in path.parts
)
_HOUR_MS = 3_600_000
_LINES_MAX = 400


@pytest.fixture
def http(small):
    with AsgiCaller(OpenApp(small.broker)) as client:
        yield client


def _send(http, **message):
    answer = http.post("/v1/messages", json={"topic": "orders", "body": "x", **message})
    assert answer.status_code == 200, answer.text
    return answer.json()


# -- files ----------------------------------------------------------------------------------------


def test_the_page_is_served_and_keeps_to_this_host(http) -> None:
    page = http.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"https?:", policy)
    for link in re.findall(r'(?:href|src)="(/[^"]+)"', page.text):
        found = http.get(link)
        assert found.status_code == 200, link
        assert found.headers["x-content-type-options"] == "nosniff"


def test_the_description_of_the_api_is_whole_and_keeps_to_this_host(http) -> None:
    page = http.get("/docs")
    assert page.status_code == 200
    assert page.headers["content-security-policy"] == http.get("/").headers["content-security-policy"]
    for link in re.findall(r'(?:href|src)="(/[^"#]*)"', page.text):
        assert http.get(link).status_code == 200, link
    spec = http.get("/openapi.json").json()
    for path, methods in spec["paths"].items():
        assert f"<code>{path}</code>" in page.text
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                assert f"<code>{parameter['name']}</code>" in page.text
    assert http.get("/redoc").status_code == 404


@pytest.mark.parametrize("path", ["/", "/docs", *(PREFIX + str(one.relative_to(_WEB)) for one in _OWN)])
def test_nothing_of_ours_names_another_host(http, path) -> None:
    text = http.get(path).text.replace("http://www.w3.org/", "")  # a name of SVG that is not requested
    assert not re.search(r"""(https?:)?//[a-z0-9-]+\.[a-z]{2,}""", text), path


def test_a_file_that_has_not_changed_is_not_sent_again(http) -> None:
    first = http.get("/dashboard/app.js")
    again = http.get("/dashboard/app.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert http.post("/").status_code == 405
    assert http.request("HEAD", "/").content == b""
    assert http.get("/dashboard/nothing.js").status_code == 404


@pytest.mark.parametrize("path", _OWN, ids=lambda path: path.name)
def test_our_files_are_short_and_name_no_other_host(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= _LINES_MAX
    assert set(re.findall(r"https?://[^\s\"'`)]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert "innerHTML" not in text, "text from messages must never be parsed as HTML"
    assert text.startswith(("//", "/*", "<!doctype")), "say at the top what the file owns"


def test_every_module_that_is_imported_exists() -> None:
    files = Dashboard()
    for path in _OWN:
        if path.suffix == ".js":
            for name in re.findall(r'from "(\.[^"]+)"', path.read_text()):
                target = (path.parent / name).resolve().relative_to(_WEB.resolve())
                assert files.has(PREFIX + target.as_posix()), f"{path.name} imports {name}"


def test_what_is_vendored_carries_its_licence() -> None:
    folders = [folder for folder in (_WEB / "vendor").iterdir() if folder.is_dir()]
    assert folders
    for folder in folders:
        assert "opyright" in (folder / "LICENSE").read_text()


# -- looks ----------------------------------------------------------------------------------------


def test_the_window_of_the_forecast(http) -> None:
    for delay_ms in (_HOUR_MS, _HOUR_MS, 2 * _HOUR_MS):
        _send(http, delay_ms=delay_ms)
    _send(http, topic="mail", delay_ms=_HOUR_MS)
    from_ms = START_MS // 60_000 * 60_000
    found = http.get(f"/v1/forecast/window?from_ms={from_ms}&step_ms={_HOUR_MS}&steps=2").json()
    assert (found["due"], found["before"], found["later"]) == ([0, 3], 0, 1)
    assert found["topics"] == [{"topic": "orders", "due": [0, 2]}, {"topic": "mail", "due": [0, 1]}]
    one = http.get(f"/v1/forecast/window?from_ms={from_ms}&step_ms={_HOUR_MS}&steps=2&topic=mail").json()
    assert one["due"] == [0, 1]
    assert http.get("/v1/forecast/window?from_ms=0&step_ms=60000&steps=100000").status_code == 400
    assert http.get("/v1/forecast/window?from_ms=0&step_ms=10&steps=10").status_code == 400


def test_a_message_with_its_body_and_history(http, small) -> None:
    receipt = _send(http, body="", body_base64=base64.b64encode(b"\xff\x00").decode(), delay_ms=_HOUR_MS)
    found = http.get("/v1/message", params={"handle": receipt["handle"]}).json()
    assert (found["state"], found["body"], found["body_size"]) == ("pending", None, 2)
    assert base64.b64decode(found["body_base64"]) == b"\xff\x00"
    moved = http.post("/v1/reschedule", json={"handles": [receipt["handle"]], "delay_ms": 0}).json()
    assert moved["moved"] == 1
    small.advance(1)
    released = http.get("/v1/message", params={"topic": "orders", "message_id": receipt["message_id"]}).json()
    assert released["state"] == "released"
    assert [event["what"] for event in released["history"]] == ["stored", "rescheduled", "released"]
    assert released["via"] == "near"


def test_a_long_body_is_cut_between_letters(http) -> None:
    receipt = _send(http, body="ä" * 100, delay_ms=_HOUR_MS)
    found = http.get("/v1/message", params={"handle": receipt["handle"], "body_limit": 51}).json()
    assert (found["body"], found["is_body_cut"], found["body_size"]) == ("ä" * 25, True, 200)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 400),
        ("?topic=orders", 400),
        ("?handle=nonsense", 400),
        ("?topic=orders&message_id=nobody", 404),
        ("?topic=none&message_id=nobody", 404),
    ],
)
def test_a_message_that_cannot_be_found(http, query, status) -> None:
    _send(http)
    answer = http.get(f"/v1/message{query}")
    assert answer.status_code == status
    assert answer.json()["message"]


def test_wheel_pulse_steps_and_me(http, small) -> None:
    _send(http, delay_ms=_HOUR_MS // 6)
    small.advance(2_000)
    small.broker.run_due()
    wheel = http.get("/v1/wheel").json()
    assert (wheel["timers"], len(wheel["shards"])) == (1, 2)
    assert [sum(dial["loads"]) for dial in wheel["dials"]] == [0, 1, 1]
    pulse = http.get("/v1/pulse").json()
    assert (pulse["sent"][-1], pulse["pending"][-1]) == (1, 1)
    assert len(pulse["lateness"][-1]) == len(pulse["bounds_ms"]) + 1
    assert http.get("/v1/steps").status_code == 200
    me = http.get("/v1/me").json()
    assert me["user"] is None
    assert all(me["may"].values())


def test_an_answer_says_what_it_cost(http) -> None:
    assert re.fullmatch(r"app;dur=\d+\.\d", http.get("/v1/status").headers["server-timing"])
