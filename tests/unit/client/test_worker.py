"""The worker: acknowledged when the function returns, again when it raises, nothing lost by a stop."""

from __future__ import annotations

import logging
import threading

import pytest

import tidemill
from http_broker import http_broker


@pytest.fixture
def served(tmp_path):
    with http_broker(tmp_path / "data") as served:
        yield served


@pytest.fixture
def app(served):
    logging.getLogger("tidemill.worker").setLevel(logging.CRITICAL)
    return tidemill.Worker(served.endpoint, group="g", concurrency=4)


def test_functions_are_called_and_messages_acknowledged(app, served) -> None:
    seen, done = [], threading.Semaphore(0)

    @app.on("plain")
    def plain(message: tidemill.Message) -> None:
        seen.append(message.text)
        done.release()

    @app.on("waited")
    async def waited(message: tidemill.Message) -> None:
        seen.append(message.text)
        done.release()

    with app, tidemill.Client(served.endpoint) as client:
        for number in range(10):
            client.send("plain", f"p{number}")
            client.send("waited", f"w{number}")
        for _ in range(20):
            assert done.acquire(timeout=30)
    assert sorted(seen) == sorted([f"p{n}" for n in range(10)] + [f"w{n}" for n in range(10)])
    assert all(count == 0 for group in served.broker.views.groups() for count in group.unsettled.values())


def test_a_function_that_raises_gets_its_message_again(app, served) -> None:
    attempts, errors, done = [], [], threading.Event()
    app._on_error = lambda message, error: errors.append(type(error))

    @app.on("t", first_retry=1)
    def fails_twice(message: tidemill.Message) -> None:
        attempts.append(message.attempt)
        if len(attempts) < 3:
            raise ZeroDivisionError
        done.set()

    with app, tidemill.Client(served.endpoint) as client:
        client.send("t", b"x")
        assert done.wait(30)
    assert attempts == [1, 2, 3]
    assert errors == [ZeroDivisionError, ZeroDivisionError]


def test_stop_finishes_what_is_in_hand_and_gives_back_the_rest(app, served) -> None:
    begun, go_on, finished = threading.Semaphore(0), threading.Event(), []

    @app.on("t")
    def slow(message: tidemill.Message) -> None:
        begun.release()
        assert go_on.wait(30)
        finished.append(message.id)

    with tidemill.Client(served.endpoint) as client:
        for _ in range(12):
            client.send("t", b"x")
        app.start()
        for _ in range(4):
            assert begun.acquire(timeout=30)
        stopper = threading.Thread(target=app.stop)
        stopper.start()
        while not app._stopping.is_set():
            go_on.wait(0.001)
        go_on.set()
        stopper.join(30)
        assert not stopper.is_alive()
        rest = [m.id for m in client.receive("t", "g", wait="2s", is_endless=False)]
        assert len(finished) == 4
        assert len(set(finished) | set(rest)) == 12 and not set(finished) & set(rest)


def test_back_off_doubles_up_to_its_limit(app) -> None:
    app.on("t", first_retry="1s", longest_retry="10s")(lambda message: None)
    (subscription,) = app._subscriptions
    assert [subscription.retry_ms(n) for n in (1, 2, 3, 4, 5, 99)] == [1000, 2000, 4000, 8000, 10000, 10000]
