"""Receive and ack over HTTP: plain requests skip the framework; all others are answered by it."""

from __future__ import annotations

import asyncio
import json

import pytest

from helpers.open_app import OpenApp
from tidemill.core.model import Draft
from tidemill.server.response_budget import Unread

_JSON = [(b"content-type", b"application/json")]


@pytest.fixture
def ask():
    """Asks for the status and the content of the answer to a request whose body comes in pieces."""
    with asyncio.Runner() as runner:
        yield lambda *request: runner.run(_answer(*request))


async def _answer(app, path: str, pieces: list[bytes], headers=_JSON) -> tuple[int, dict[str, object]]:
    sent: list[dict[str, object]] = []
    events = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    events[-1]["more_body"] = False

    async def receive() -> dict[str, object]:
        return events.pop(0) if events else {"type": "http.disconnect"}

    async def send(event: dict[str, object]) -> None:
        sent.append(event)

    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
    scope |= {"http_version": "1.1", "scheme": "http", "raw_path": path.encode(), "root_path": ""}
    await app(scope, receive, send)
    return sent[0]["status"], json.loads(b"".join(event.get("body", b"") for event in sent[1:]))


@pytest.fixture
def app(ask, small):  # the loop outlives the broker, which tells it of arrivals
    small.broker.topics.create("orders")
    return OpenApp(small.broker)


@pytest.fixture
def ways(app, monkeypatch):
    """The requests that went the framework's way."""
    taken: list[str] = []
    by_routes = app.http.consumer_endpoint._framework

    async def counted(scope, receive, send) -> None:
        taken.append(scope["path"])
        await by_routes(scope, receive, send)

    monkeypatch.setattr(app.http.consumer_endpoint, "_framework", counted)
    return taken


def test_a_receive_and_an_ack_go_past_the_framework(app, ask, small, ways) -> None:
    small.broker.send([Draft("orders", "grüße".encode(), keys=("k",), properties={"a": "b"})])
    body = json.dumps({"topic": "orders", "group": "g"}).encode()
    status, said = ask(app, "/v1/receive", [body])
    (delivery,) = said["deliveries"]
    assert (status, delivery["body"], delivery["keys"]) == (200, "grüße", ["k"])
    receipts = json.dumps({"ack_tokens": [delivery["ack_token"]] * 2}).encode()
    assert ask(app, "/v1/ack", [receipts]) == (200, {"settled": [True, False]})
    assert ways == []


def test_messages_for_which_there_is_no_room_go_back_untried(app, ask, small) -> None:
    """A call finds space, takes its messages, and by then others have filled it with unread answers."""
    small.broker.send([Draft("orders", b"x" * 100)])
    body = json.dumps({"topic": "orders", "group": "g"}).encode()
    unread = Unread(bytes_max=150)

    async def counted(scope, receive, send) -> None:
        with unread.answer(send) as answer:
            await app.http(scope, receive, answer)

    unread.held = 51
    unread.require_capacity()
    for _ in range(2):
        status, said = ask(counted, "/v1/receive", [body])
        assert (status, said["code"]) == (429, "too-many-requests")
    unread.held = 50
    (delivery,) = ask(counted, "/v1/receive", [body])[1]["deliveries"]
    assert delivery["attempt"] == 1


def test_a_body_in_pieces_is_put_together(app, ask, small, ways) -> None:
    small.broker.send([Draft("orders", b"x")])
    pieces = [b'{"topic": "or', b'ders", "group": "g"}', b""]
    assert len(ask(app, "/v1/receive", pieces)[1]["deliveries"]) == 1
    assert ways == []


@pytest.mark.parametrize(
    ("path", "pieces", "headers"),
    [
        ("/v1/receive", [b"{"], _JSON),
        ("/v1/receive", [b"\xff"], _JSON),
        ("/v1/receive", [b"[" * 100_000], _JSON),
        ("/v1/receive", [b'{"topic": "orders", ', b'"group": "g", "count": 0}'], _JSON),
        ("/v1/receive", [b'{"topic": "orders", "group": "g", "colour": 1}'], _JSON),
        ("/v1/receive", [b'{"topic": "orders", "group": "g"}'], []),
        ("/v1/ack", [b'{"ack_tokens": "text"}'], _JSON),
        ("/v1/ack", [b"null"], _JSON),
    ],
)
def test_what_is_wrong_is_answered_by_the_framework_whole(app, ask, ways, path, pieces, headers) -> None:
    found = ask(app, path, list(pieces), headers)
    assert ways == [path]
    assert found == ask(app.http.by_routes, path, list(pieces), headers)
    assert found[0] == 400


def test_a_choice_of_no_tag_at_all_is_refused_and_passes_over_nothing(app, ask, small) -> None:
    small.broker.send([Draft("orders", b"x", tag="a")])
    asked = {"topic": "orders", "group": "g", "tags": []}
    status, _ = ask(app, "/v1/receive", [json.dumps(asked).encode()])
    assert status == 400
    _, said = ask(app, "/v1/receive", [json.dumps({**asked, "tags": ["a"]}).encode()])
    assert len(said["deliveries"]) == 1


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/receive", {"topic": "none", "group": "g"}, 404),
        ("/v1/receive", {"topic": "orders", "group": "no group name"}, 400),
        ("/v1/ack", {"ack_tokens": ["not one"]}, 400),
    ],
)
def test_what_the_broker_refuses_is_refused_in_the_same_words_either_way(
    app, ask, ways, path, body, status
) -> None:
    quick = ask(app, path, [json.dumps(body).encode()])
    assert ways == [] and quick[0] == status
    assert quick == ask(app.http.by_routes, path, [json.dumps(body).encode()])
