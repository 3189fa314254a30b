"""Answers that are lost on the way back: what is repeated, and what is reported as unknown."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

import tidemill
from helpers.http_broker import http_broker
from tidemill.client.transport.endpoint import read_head
from tidemill.client.transport.retrying import Patience, RetryPolicy, error_in, is_worth_a_retry
from tidemill.core.clock import SimulatedClock
from tidemill.core.errors import IllegalRequestIdError, RequestIdReusedError, UnreachableError
from tidemill.core.model import CancelAnswer

START_MS = 1_800_000_000_000


class _Losing:
    """A way to the broker on which the next answer is lost once `loses` is set."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.loses = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            with caller, socket.create_connection(("127.0.0.1", self._port)) as broker:
                while request := caller.recv(65_536):
                    broker.sendall(request)
                    answer = _whole_answer(broker)
                    if self.loses:
                        self.loses = False
                        break
                    caller.sendall(answer)
                    break  # one request for each connection, so that none is taken for stale

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


def _whole_answer(broker: socket.socket) -> bytes:
    data = b""
    while (found := read_head(data)) is None or len(data) < found[1] + (found[0].length or 0):
        piece = broker.recv(65_536)
        if not piece:
            break
        data += piece
    return data


@pytest.fixture
def served(tmp_path):
    with http_broker(tmp_path / "data", SimulatedClock(START_MS)) as served:
        yield served


@pytest.fixture
def losing(served):
    losing = _Losing(served.port)
    yield losing
    losing.close()


@pytest.fixture
def client(served):
    """One that sees to the rest, by the straight way."""
    with tidemill.Client(served.endpoint) as client:
        yield client


def _moment(seconds: int) -> float:
    return START_MS / 1_000 + seconds


_UNTRUE_AGAIN = {
    "delete_topic": lambda c: c.topics.delete("t", force=True),
    "resend_dead_letters": lambda c: c.dead_letters.resend("g"),
}


@pytest.mark.parametrize("name", _UNTRUE_AGAIN)
def test_what_would_be_answered_untruly_the_second_time_is_not_asked_again(client, losing, name) -> None:
    client.send("t", b"x", delay="60s", key="k")
    act = _UNTRUE_AGAIN[name]
    with tidemill.Client(losing.endpoint, retry_for="30s") as unlucky:
        losing.loses = True
        with pytest.raises(UnreachableError, match="whether it was carried out is not known"):
            act(unlucky)
    if name != "resend_dead_letters":
        assert (
            client.pending("t" if name != "delete_topic" else None, end=_moment(90), start=START_MS / 1_000)
            == []
        )


def test_tasks_get_the_same_error(client, losing) -> None:
    client.send("t", b"x", delay="60s", key="k")

    async def act() -> None:
        async with tidemill.AsyncClient(losing.endpoint) as unlucky:
            losing.loses = True
            with pytest.raises(UnreachableError, match="not known"):
                await unlucky.topics.delete("t", force=True)

    asyncio.run(act())
    assert client.topics.list() == []


def test_a_lost_read_leaves_nothing_in_doubt(losing) -> None:
    with tidemill.Client(losing.endpoint, retry_for=0) as unlucky:
        losing.loses = True
        with pytest.raises(UnreachableError, match="nothing was changed, so ask again") as lost:
            unlucky.topics.list()
    assert "not known" not in str(lost.value)

    async def act() -> None:
        async with tidemill.AsyncClient(losing.endpoint, retry_for=0) as unlucky:
            losing.loses = True
            with pytest.raises(UnreachableError, match="nothing was changed, so ask again"):
                await unlucky.topics.list()

    asyncio.run(act())


def test_an_answer_that_is_not_the_brokers_says_where_to_look() -> None:
    fault = str(error_in(500, b"Internal Server Error"))
    assert "HTTP status 500 (Internal Server Error)" in fault and "see the broker's log" in fault
    assert str(error_in(404, b"")) == "HTTP status 404 is no answer of a broker; check the endpoint"


_CHANGES = {
    "cancel": (lambda c, h: c.cancel(h), CancelAnswer.CANCELLED),
    "cancel_many": (
        lambda c, h: c.cancel_many([h, h]),
        [CancelAnswer.CANCELLED, CancelAnswer.ALREADY_CANCELLED],
    ),
    "cancel_where": (lambda c, h: c.cancel_where("t", key="k"), 1),
    "cancel_where in a range": (lambda c, h: c.cancel_where("t", start=START_MS / 1_000, end=_moment(90)), 1),
    "reschedule_where": (lambda c, h: c.reschedule_where("t", key="k", by="1m"), 1),
    "reschedule_where in a range": (
        lambda c, h: c.reschedule_where("t", start=START_MS / 1_000, end=_moment(90), by="1m"),
        1,
    ),
}


@pytest.mark.parametrize("name", _CHANGES)
def test_a_change_whose_answer_is_lost_is_asked_again_and_answered_as_the_first_time(client, losing, name):
    receipt = client.send("t", b"x", delay="60s", key="k")
    act, expected = _CHANGES[name]
    with tidemill.Client(losing.endpoint) as unlucky:
        losing.loses = True
        assert act(unlucky, receipt.handle) == expected
        assert not losing.loses
    dues = [p.deliver_at_ms for p in client.pending("t")]
    assert dues == ([_moment(120) * 1_000] if name.startswith("reschedule") else [])


def test_a_move_by_a_span_whose_answer_is_lost_moves_once(client, losing) -> None:
    receipt = client.send("t", b"x", delay="60s")
    with tidemill.Client(losing.endpoint) as unlucky:
        losing.loses = True
        moved = unlucky.reschedule(receipt.handle, by="1m")
    assert moved.deliver_at_ms == _moment(120) * 1_000
    assert [p.handle for p in client.pending("t")] == [moved.handle]


def test_tasks_get_the_first_answer_too(client, losing) -> None:
    handles = [client.send("t", b"x", delay="60s", key=key).handle for key in ("a", "b", "c", "d")]

    async def act() -> None:
        async with tidemill.AsyncClient(losing.endpoint) as unlucky:
            losing.loses = True
            assert await unlucky.cancel(handles[0]) is CancelAnswer.CANCELLED
            losing.loses = True
            assert await unlucky.cancel_many(handles[:2]) == [
                CancelAnswer.ALREADY_CANCELLED,
                CancelAnswer.CANCELLED,
            ]
            losing.loses = True
            assert await unlucky.cancel_where("t", key="c") == 1
            losing.loses = True
            assert (await unlucky.reschedule(handles[3], by="1m")).deliver_at_ms == _moment(120) * 1_000
            losing.loses = True
            assert await unlucky.reschedule_where("t", key="d", by="1m") == 1

    asyncio.run(act())
    assert [p.deliver_at_ms for p in client.pending("t")] == [_moment(180) * 1_000]


def test_a_program_may_give_an_id_of_its_own_and_ask_again_after_a_restart(client, served) -> None:
    receipts = [client.send("t", b"x", delay="60s", key="k") for _ in range(3)]
    first = client.cancel(receipts[0].handle, request_id="payment-17")
    with tidemill.Client(served.endpoint) as restarted:
        assert (
            restarted.cancel(receipts[0].handle, request_id="payment-17") is first is CancelAnswer.CANCELLED
        )
        with pytest.raises(RequestIdReusedError):
            restarted.cancel(receipts[1].handle, request_id="payment-17")
        assert restarted.cancel_where("t", key="k", request_id="r") == 2
        assert restarted.cancel_where("t", key="k", request_id="r") == 2


@pytest.mark.parametrize("request_id", ["", "a b", "x\r\nHost: elsewhere", "x" * 256, 7])
def test_an_id_that_is_no_header_is_refused_before_anything_is_sent(client, request_id) -> None:
    handle = client.send("t", b"x", delay="60s").handle
    with pytest.raises(IllegalRequestIdError):
        client.cancel(handle, request_id=request_id)
    assert len(client.pending("t")) == 1


def test_a_call_with_an_id_is_repeated_for_less_than_the_broker_keeps_it() -> None:
    policy = RetryPolicy(give_up_after_s=7_200.0)
    assert Patience(policy)._policy.give_up_after_s == 7_200.0
    assert Patience(policy, has_request_id=True)._policy.give_up_after_s < 3_600.0
    assert Patience(RetryPolicy(5.0), has_request_id=True)._policy.give_up_after_s == 5.0


def test_what_is_true_the_second_time_is_asked_again(client, losing) -> None:
    receipt = client.send("t", b"x", delay="60s", key="k")
    with tidemill.Client(losing.endpoint) as unlucky:
        losing.loses = True
        assert unlucky.reschedule_where("t", key="k", at=_moment(30)) == 1
        losing.loses = True
        assert unlucky.cancel(receipt.handle) is CancelAnswer.CANCELLED
        client.send("t", b"y")
        (message,) = unlucky.receive_batch("t", "g")
        losing.loses = True
        assert unlucky.ack(message) == [False]  # settled by the first request, as its words say
    assert [group.unsettled for group in client.groups.list()] == [{"t": 0}]


@pytest.mark.parametrize(
    ("status", "is_repeatable", "again"),
    [(429, False, True), (503, False, True), (502, False, False), (504, False, False), (502, True, True)],
)
def test_what_a_proxy_lost_is_asked_again_only_if_it_may_happen_twice(status, is_repeatable, again) -> None:
    assert is_worth_a_retry(status, is_repeatable=is_repeatable) is again
