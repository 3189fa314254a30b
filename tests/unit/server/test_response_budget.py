"""The response budget: bounded also where calls come together, and given back when they end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI

from helpers.open_app import OpenApp
from tidemill.core.model import Draft
from tidemill.server.http import http_retries as admin_retries
from tidemill.server.response_budget import BodiesRoute, Unread, reserve

_BODY = b"x" * 300_000


class _Caller:
    """Asks, and reads its answer only when it is let."""

    def __init__(self, app: Any, unread: Unread, path: str, method: str = "GET") -> None:
        self._app = app
        self._unread = unread
        self._path, _, self._query = path.partition("?")
        self._method = method
        self.reads = asyncio.Event()
        self.is_answered = asyncio.Event()
        self.status = 0
        self.body = b""

    async def ask(self) -> None:
        scope = {"type": "http", "method": self._method, "path": self._path, "headers": []}
        scope |= {"query_string": self._query.encode(), "http_version": "1.1", "scheme": "http"}
        with self._unread.answer(self._send, may_refuse=self._method == "GET") as answer:
            await self._app(scope, self._receive, answer)

    async def _receive(self) -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _send(self, event: dict[str, Any]) -> None:
        if event["type"] == "http.response.start":
            self.status = event["status"]
            self.is_answered.set()
        elif self.status == 200:
            await self.reads.wait()
        self.body += event.get("body", b"")


@pytest.fixture
def app(small):
    """With a message, a timed one and a dead letter, large ones."""
    broker = small.broker
    broker.topics.create("jobs", queue_count=1)
    broker.receiver.set_group("g", starts_first=True)
    broker.send([Draft("jobs", _BODY, keys=("k",))])
    broker.send_back([delivery.ack_token for delivery in broker.receive("jobs", "g")], -1)
    broker.send([Draft("jobs", _BODY, id="later", delay_ms=60_000)])
    return OpenApp(broker).http


@pytest.mark.parametrize(
    "path",
    [
        "/v1/topics/jobs/read",
        "/v1/topics/jobs/find?key=k",
        "/v1/message?topic=jobs&message_id=later&body_limit=300000",
        "/v1/dead-letters",
        "/v1/dead-letters?group=g",
    ],
)
def test_of_calls_that_come_together_only_those_with_room_are_answered(app, path) -> None:
    async def scene() -> None:
        unread = Unread(bytes_max=1_400_000)
        callers = [_Caller(app, unread, path) for _ in range(20)]
        async with asyncio.TaskGroup() as calls:
            for caller in callers:
                calls.create_task(caller.ask())
            async with asyncio.timeout(10):
                await asyncio.gather(*(caller.is_answered.wait() for caller in callers))
            statuses = [caller.status for caller in callers]
            assert 1 <= statuses.count(200) <= 4
            assert statuses.count(429) == 20 - statuses.count(200)
            assert 300_000 < unread.held <= 1_400_000
            for caller in callers:
                caller.reads.set()
        refused = next(caller for caller in callers if caller.status == 429)
        assert json.loads(refused.body)["code"] == "too-many-requests"
        assert all(_BODY in caller.body for caller in callers if caller.status == 200)
        assert unread.held == 0
        late = _Caller(app, unread, path)
        late.reads.set()
        await late.ask()
        assert late.status == 200

    asyncio.run(scene())


def test_what_an_answer_came_to_counts_and_not_what_it_was_made_of(app, small) -> None:
    """A zero byte is one byte in a body and six in JSON."""
    small.broker.send([Draft("jobs", b"\0" * 100_000, keys=("zeros",))])

    async def scene() -> None:
        unread = Unread(bytes_max=500_000)
        unread.held = 1
        caller = _Caller(app, unread, "/v1/topics/jobs/find?key=zeros")
        await caller.ask()
        assert (caller.status, unread.held) == (429, 1)

    asyncio.run(scene())


def test_only_so_many_answers_with_bodies_are_made_at_once() -> None:
    app, under_way, most = FastAPI(), 0, 0

    async def look() -> str:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(5):
            await asyncio.sleep(0)
        under_way -= 1
        return "seen"

    app.router.route_class = BodiesRoute
    app.get("/look")(look)

    async def scene() -> None:
        unread = Unread(bytes_max=5000)
        callers = [_Caller(app, unread, "/look") for _ in range(20)]
        for caller in callers:
            caller.reads.set()
        await asyncio.gather(*(caller.ask() for caller in callers))
        assert [caller.status for caller in callers] == [200] * 20
        assert most == 4

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("method", "size", "status"), [("GET", 300_000, 429), ("POST", 300_000, 200), ("GET", 200_000, 200)]
)
def test_what_is_done_is_answered_whatever_waits_and_so_is_what_is_short(method, size, status) -> None:
    app = FastAPI()
    app.add_api_route("/answer", lambda: "x" * size, methods=[method])

    async def scene() -> None:
        unread = Unread(bytes_max=100_000)
        unread.held = 1
        caller = _Caller(app, unread, "/answer", method)
        caller.reads.set()
        await caller.ask()
        assert (caller.status, unread.held) == (status, 1)

    asyncio.run(scene())


def test_room_is_given_back_when_the_answer_fails() -> None:
    unread = Unread(bytes_max=900)

    def fail() -> None:
        with unread.answer(None):
            reserve([b"12", b"345"])
            assert unread.held == 5
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        fail()
    assert unread.held == 0


def test_the_letters_of_all_groups_together_have_the_room_of_one_answer(app, small, monkeypatch) -> None:
    for name in ("h", "i", "j"):
        small.broker.receiver.set_group(name, starts_first=True)
        small.broker.send_back([d.ack_token for d in small.broker.receive("jobs", name)], -1)
    monkeypatch.setattr(admin_retries, "ANSWER_BYTES_MAX", 450_000)

    async def scene() -> None:
        caller = _Caller(app, Unread(bytes_max=10_000_000), "/v1/dead-letters")
        caller.reads.set()
        await caller.ask()
        assert [letter["group"] for letter in json.loads(caller.body)["dead_letters"]] == ["g", "h"]

    asyncio.run(scene())
