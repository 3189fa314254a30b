"""The worker: acknowledged when the function returns, again when it raises, nothing lost by a stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

import tidemill
from helpers.http_broker import http_broker
from tidemill.client.slots import Slots
from tidemill.core.errors import ForbiddenError, RequestError, TidemillError


@pytest.fixture
def served(tmp_path):
    with http_broker(tmp_path / "data") as served:
        yield served


@pytest.fixture
def app(served):
    logging.getLogger("tidemill.worker").setLevel(logging.CRITICAL)
    return tidemill.Worker(served.endpoint, group="g", concurrency=4)


def test_how_long_it_waits_for_a_broker_that_is_away_is_chosen() -> None:
    worker = tidemill.Worker("127.0.0.1:1", group="g", retry_for=0)
    worker.on("t")(print)
    with pytest.raises(TidemillError, match=r"no broker at 127\.0\.0\.1:1"):
        worker.start()
    assert tidemill.Worker(group="g", retry_for="5m").client._policy.give_up_after_s == 300


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

    @app.on("t", first_retry="1ms")
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
        found = list(client.receive("t", "g", wait="2s", stop_when_idle=True))
        rest = [m.id for m in found]
        assert len(finished) == 4
        assert len(set(finished) | set(rest)) == 12 and not set(finished) & set(rest)
        assert {m.attempt for m in found} == {1}  # what was fetched and not begun was no attempt


def test_back_off_doubles_up_to_its_limit(app) -> None:
    app.on("t", first_retry="1s", longest_retry="10s")(lambda message: None)
    (subscription,) = app._subscriptions
    assert [subscription.retry_s(n) for n in (1, 2, 3, 4, 5, 99)] == [1, 2, 4, 8, 10, 10]


def test_a_quiet_topic_keeps_no_other_waiting(served) -> None:
    app, done = tidemill.Worker(served.endpoint, group="g", concurrency=1), threading.Semaphore(0)
    seen: set[str] = set()

    def handle(message: tidemill.Message) -> None:
        seen.add(message.topic)
        done.release()

    topics = [f"t{number}" for number in range(6)]
    for topic in topics:
        app.on(topic)(handle)
    with app, tidemill.Client(served.endpoint) as client:
        for topic in [*topics, *topics]:
            client.send(topic, b"x")
            assert done.acquire(timeout=120)
    assert seen == set(topics)


def test_messages_of_a_group_that_keeps_order_come_one_after_the_other(app, served) -> None:
    seen: dict[str, list[str]] = {"a": [], "b": []}
    running, done = [], threading.Semaphore(0)

    @app.on("line", first_retry="1ms")
    def handle(message: tidemill.Message) -> None:
        assert message.message_group not in running
        running.append(message.message_group)
        try:
            if message.text == "1" and message.attempt < 3:
                raise ZeroDivisionError
            seen[message.message_group].append(message.text)
        finally:
            running.remove(message.message_group)
        done.release()

    with tidemill.Client(served.endpoint) as client:
        client.groups.set("g", is_fifo=True)
        client.topics.create("line", queues=1)
        for number in range(10):
            for group in seen:
                client.send("line", str(number), message_group=group)
        with app:
            for _ in range(20):
                assert done.acquire(timeout=120)
    assert seen == {group: [str(number) for number in range(10)] for group in "ab"}


def test_awaited_functions_share_an_event_loop(app, served) -> None:
    loops, done = set(), threading.Semaphore(0)
    inner = tidemill.AsyncClient(served.endpoint)

    @app.on("t")
    async def handle(message: tidemill.Message) -> None:
        loops.add(asyncio.get_running_loop())
        await (inner.close() if message.text == "last" else inner.send("answers", message.text))
        done.release()

    with app, tidemill.Client(served.endpoint) as client:
        for _ in range(8):
            client.send("t", b"x")
        for _ in range(8):
            assert done.acquire(timeout=120)
        client.send("t", "last")
        assert done.acquire(timeout=120)
        assert len(loops) == 1
        assert len(client.receive_batch("answers", "g")) == 8


def test_who_may_only_receive_can_work(app, served, monkeypatch) -> None:
    done = threading.Event()
    with tidemill.Client(served.endpoint) as client:
        client.topics.create("t")
        app.on("t")(lambda message: done.set())

        def forbidden(name: str) -> None:
            raise ForbiddenError("may not admin")

        monkeypatch.setattr(app.client.topics, "list", list)  # nor is it shown any
        monkeypatch.setattr(app.client.topics, "create", forbidden)
        with app:
            client.send("t", b"x")
            assert done.wait(120)


@pytest.mark.parametrize(
    "arguments", [{"concurrency": 0}, {"concurrency": "8"}, {"group": ""}, {"group": None}]
)
def test_a_worker_that_cannot_be_is_refused(served, arguments) -> None:
    with pytest.raises(RequestError):
        tidemill.Worker(served.endpoint, **{"group": "g", **arguments})


@pytest.mark.parametrize(
    "arguments",
    [{"lease": 0}, {"lease": "999ms"}, {"tags": "red"}, {"first_retry": -1}, {"longest_retry": "5s"}],
)
def test_a_subscription_that_cannot_be_is_refused(app, arguments) -> None:
    with pytest.raises(RequestError):
        app.on("t", **arguments)(lambda message: None)


def test_a_group_makes_one_choice_of_tags_in_a_topic(app) -> None:
    app.on("orders", tags=["a", "b"])(print)
    app.on("orders", tags=["b", "a"])(print)
    app.on("bills", tags=["a"])(print)
    for tags in (["a"], None):
        with pytest.raises(RequestError, match="one choice of tags"):
            app.on("orders", tags=tags)


def test_a_worker_is_started_once_and_with_something_to_do(app) -> None:
    with pytest.raises(RequestError, match="nothing to do"):
        app.start()
    with pytest.raises(RequestError, match="name the topic"):
        app.on(lambda message: None)
    with pytest.raises(RequestError, match="cannot be called"):
        app.on("t")(3)
    app.on("t")(lambda message: None)
    with app:
        with pytest.raises(RequestError, match="before"):
            app.start()
        with pytest.raises(RequestError, match="has started"):
            app.on("u")
    with pytest.raises(RequestError, match="make another"):
        app.start()


def test_a_second_signal_waits_for_nothing(app, served) -> None:
    begun, go_on, caught = threading.Event(), threading.Event(), []

    @app.on("t")
    def hang(message: tidemill.Message) -> None:
        begun.set()
        go_on.wait(120)

    def signals() -> None:
        with tidemill.Client(served.endpoint) as client:
            client.send("t", b"x")
        assert begun.wait(120)
        os.kill(os.getpid(), signal.SIGTERM)
        while signal.getsignal(signal.SIGTERM) != mine:
            go_on.wait(0.005)
        os.kill(os.getpid(), signal.SIGTERM)

    def mine(number: int, frame: object) -> None:
        caught.append(number)
        go_on.set()  # in place of the end of the process

    before = signal.signal(signal.SIGTERM, mine)
    try:
        sender = threading.Thread(target=signals)
        sender.start()
        app.run()
        sender.join()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert caught == [signal.SIGTERM]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait_for_a_broker_that_is_not_there(number) -> None:
    app, asked, endless = tidemill.Worker("127.0.0.1:1", group="g"), threading.Event(), threading.Lock()
    app.on("t")(lambda message: None)
    endless.acquire()

    def topics() -> None:
        asked.set()
        assert endless.acquire(timeout=120)

    app.client.topics.list = topics
    main, before = threading.get_ident(), signal.getsignal(number)

    def send_signal() -> None:
        assert asked.wait(120)
        signal.pthread_kill(main, number)

    sender = threading.Thread(target=send_signal)
    sender.start()
    app.run()
    sender.join()
    assert app._pool is None
    assert signal.getsignal(number) == before
    with pytest.raises(RequestError, match="closed"):
        app.client.status()


def test_stop_ends_the_wait_for_a_broker_too() -> None:
    app = tidemill.Worker("127.0.0.1:1", group="g")
    app.on("t")(lambda message: None)
    running = threading.Thread(target=app.run)
    running.start()
    while not app.client._closing._locks:  # it waits before it tries again
        threading.Event().wait(0.001)
    app.stop()
    running.join(120)
    assert not running.is_alive()


def test_a_function_may_stop_its_worker(app, served) -> None:
    finished = []

    @app.on("plain")
    def plain(message: tidemill.Message) -> None:
        app.stop()
        finished.append("plain")

    other = tidemill.Worker(served.endpoint, group="g")

    @other.on("waited")
    async def waited(message: tidemill.Message) -> None:
        other.stop()
        finished.append("waited")

    with tidemill.Client(served.endpoint) as client:
        client.send("plain", b"x")
        client.send("waited", b"x")
        for worker in (app, other):
            running = threading.Thread(target=worker.run)
            running.start()
            running.join(120)
            assert not running.is_alive()
    assert finished == ["plain", "waited"]
    assert all(count == 0 for group in served.broker.views.groups() for count in group.unsettled.values())


_BUSY_WORKER = """
import signal, sys, threading, tidemill
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
app = tidemill.Worker(sys.argv[1], group="g")

@app.on("t")
def hang(message):
    print("begun", flush=True)
    while signal.getsignal(signal.SIGINT) == app._on_signal:
        threading.Event().wait(0.005)
    print("again" if signal.getsignal(signal.SIGINT) is signal.SIG_DFL else "waits", flush=True)
    threading.Event().wait()

app.run()
"""


def test_a_second_ctrl_c_ends_the_process_though_a_function_is_busy(served) -> None:
    with tidemill.Client(served.endpoint) as client:
        client.send("t", b"x")
    program = [sys.executable, "-c", _BUSY_WORKER, served.endpoint]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            for said in (b"begun", b"again"):
                assert process.stdout.readline().strip() == said
                process.send_signal(signal.SIGINT)
            assert process.wait(60) == -signal.SIGINT
        finally:
            process.kill()


def test_places_go_to_who_came_first() -> None:
    slots, order = Slots(2), []
    assert slots.reserve(5, 0) == 2
    assert slots.reserve(1, 0) == 0

    def take(name: str) -> None:
        assert slots.reserve(1, 120) == 1
        order.append(name)

    threads = []
    for name in "ab":
        threads.append(threading.Thread(target=take, args=(name,)))
        threads[-1].start()
        while len(slots._queue) < len(threads):
            threading.Event().wait(0.001)
    slots.add(1)  # over the count
    slots.release(2)
    threads[0].join(120)
    assert order == ["a"]
    slots.release(1)
    threads[1].join(120)
    assert order == ["a", "b"]
