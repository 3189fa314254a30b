"""The client against a broker on a port: every verb, restarts, tables, tasks."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pandas
import pyarrow as pa
import pytest

import tidemill
from helpers.http_broker import HttpBroker, http_broker
from tidemill.core.answers import Holds
from tidemill.core.clock import SimulatedClock
from tidemill.core.config import BrokerSettings
from tidemill.core.errors import (
    IllegalDelayError,
    RequestError,
    TidemillError,
    TooManyRequestsError,
    UnknownTopicError,
    UnreachableError,
)
from tidemill.core.holds import Held
from tidemill.core.model import CancelAnswer, Draft, SendResult

START_MS = 1_800_000_000_000


@pytest.fixture
def served(tmp_path):
    with http_broker(tmp_path / "data", SimulatedClock(START_MS)) as served:
        yield served


@pytest.fixture
def client(served):
    with tidemill.Client(served.endpoint) as client:
        yield client


def test_a_message_from_send_to_ack(client) -> None:
    receipt = client.send("orders", "body", delay="5s", key="k", tag="t", properties={"a": "b"})
    assert receipt.deliver_at_ms == START_MS + 5_000
    assert client.admin.advance("5s") == START_MS + 5_000
    (message,) = client.receive_batch("orders", "g", wait="5s")
    assert (message.id, message.text, message.key, message.attempt) == (receipt.id, "body", "k", 1)
    assert message.properties["a"] == "b"
    assert client.ack(message) == [True]
    assert client.receive_batch("orders", "g") == []


def test_a_receipt_says_where_the_message_is_unless_it_waits(client) -> None:
    drafts = [Draft("orders", b"", id=f"m{number}") for number in range(12)]
    first = client.send_draft(drafts[0])
    receipts = [first, client.send_draft(drafts[0]), *client.send_many(drafts[1:])]
    placed = {m.id: (m.queue, m.offset) for m in client.receive_batch("orders", "g", count=32)}
    assert len(placed) == 12
    assert [(r.queue, r.offset) for r in receipts] == [placed[r.id] for r in receipts]
    assert client.send("orders", "later", delay="5s").offset is None


def test_what_is_wrong_with_a_message_is_raised_as_in_the_broker(client) -> None:
    with pytest.raises(IllegalDelayError):
        client.send("orders", b"x", delay="9999d")
    with pytest.raises(UnknownTopicError):
        client.receive_batch("nowhere", "g")
    with pytest.raises(RequestError):
        client.cancel_where("orders", key="k", start=1, end=2)


def test_errors_are_caught_by_the_names_that_the_package_has(client) -> None:
    with pytest.raises(tidemill.RequestError):
        client.send("bad name", b"")
    assert issubclass(tidemill.BusyError, tidemill.TidemillError)
    with tidemill.Client("127.0.0.1:1", retry_for=0) as nobody, pytest.raises(tidemill.UnreachableError):
        nobody.status()


def test_a_list_is_no_message_to_acknowledge(client) -> None:
    with pytest.raises(tidemill.RequestError, match=r"ack\(\*messages\)"):
        client.ack([])


def test_cancel_and_reschedule(client) -> None:
    receipt = client.send("orders", b"x", at=(START_MS + 60_000) / 1_000, key="k")
    moved = client.reschedule(receipt.handle, by="1m")
    assert moved.deliver_at_ms == START_MS + 120_000
    assert client.reschedule_where("orders", key="k", delay="1h") == 1
    assert [p.deliver_at_ms for p in client.pending("orders", key="k")] == [START_MS + 3_600_000]
    assert client.cancel(moved.handle) is CancelAnswer.CANCELLED
    assert client.cancel(str(receipt.handle)) is CancelAnswer.ALREADY_CANCELLED
    assert not client.reschedule(receipt.handle, by="1m").is_moved
    assert client.cancel_where("orders", start=START_MS / 1_000, end=(START_MS + 10**9) / 1_000) == 0


def test_a_range_that_is_backwards_and_a_span_too_far_back_are_refused(client) -> None:
    for look in (client.pending, client.tables.pending):
        with pytest.raises(tidemill.RequestError, match=r"start .* is after end"):
            look("orders", start=(START_MS + 1) / 1_000, end=START_MS / 1_000)
    with pytest.raises(tidemill.RequestError, match="'-9999d' is longer than the longest delay"):
        client.reschedule_where("orders", key="k", by="-9999d")


@pytest.fixture
def narrow(tmp_path):
    """A broker that takes one message of a topic for each tick."""
    settings = BrokerSettings(due_per_tick_max=1)
    with http_broker(tmp_path / "narrow", SimulatedClock(START_MS), settings) as served:
        yield served


def test_what_is_refused_for_now_is_sent_again_and_delays_no_other_message(narrow) -> None:
    minute = [START_MS + 60_000 * number for number in range(4)]
    with tidemill.Client(narrow.endpoint) as client, ThreadPoolExecutor(2) as threads:
        first = client.send("t", b"first", at=minute[1] / 1_000)
        lone = threads.submit(client.send, "t", b"waits for the first", at=minute[1] / 1_000)
        drafts = [
            Draft("t", b"%d" % at_ms, deliver_at_ms=at_ms) for at_ms in (minute[2], minute[2], minute[3])
        ]
        many = threads.submit(client.send_many, drafts)
        while len(client.pending("t")) < 3:
            assert not lone.done()
        client.cancel(first.handle)
        assert lone.result(20).deliver_at_ms == minute[1]
        client.cancel_where("t", start=minute[2] / 1_000, end=minute[3] / 1_000)
        assert all(isinstance(answer, SendResult) for answer in many.result(20))
    with tidemill.Client(narrow.endpoint, retry_for=0) as hasty, pytest.raises(TooManyRequestsError):
        hasty.send("t", b"too many", at=minute[1] / 1_000)


def test_tasks_wait_for_room_too(narrow) -> None:
    async def run() -> None:
        async with tidemill.AsyncClient(narrow.endpoint) as client:
            first = await client.send("t", b"first", at=(START_MS + 60_000) / 1_000)
            waiting = asyncio.create_task(client.send("t", b"second", at=(START_MS + 60_000) / 1_000))
            many = asyncio.create_task(client.send_many([Draft("t", b"3", deliver_at_ms=START_MS + 60_000)]))
            await client.send("t", b"another", at=(START_MS + 120_000) / 1_000)
            await client.cancel(first.handle)
            done, _ = await asyncio.wait((waiting, many), return_when=asyncio.FIRST_COMPLETED, timeout=20)
            assert done
            await client.cancel_where("t", start=START_MS / 1_000, end=(START_MS + 100_000) / 1_000)
            assert isinstance(await waiting, SendResult)
            assert isinstance((await many)[0], SendResult)

    asyncio.run(run())


def test_once_by_key(client) -> None:
    first = client.send("orders", b"1", delay="1m", key="k", once=True)
    again = client.send("orders", b"2", delay="2m", key="k", once=True)
    assert (again.id, again.is_repeat) == (first.id, True)
    later = client.send("orders", b"3", delay="3m", key="k", once="replace")
    assert (later.id, later.deliver_at_ms) == (first.id, START_MS + 180_000)


def test_looks_topics_and_groups(client) -> None:
    client.topics.create("t", "delay", queues=2)
    client.send("t", b"x", delay="90s")
    assert [(t.name, t.queues, t.pending) for t in client.topics.list()] == [("t", 2, 1)]
    assert sum(minute.due for minute in client.forecast("t", horizon="5m")) == 1
    assert client.status().pending == 1
    assert client.topics.pause("t").is_paused and not client.topics.resume("t").is_paused
    assert client.topics.limit("t", 5).release_rate_max == 5
    assert client.groups.set("g", max_attempts=3).max_attempts == 3
    client.groups.reset("g", "t", START_MS / 1_000)
    assert [group.name for group in client.groups.list()] == ["g"]
    assert client.topics.delete("t", force=True) == 1


def test_hold_and_resume(client) -> None:
    assert client.admin.hold("releases") == Holds(START_MS, None)
    assert client.admin.hold(Held.ABSORBING) == Holds(START_MS, START_MS)
    client.send("orders", b"x", delay="1s")
    client.admin.advance("5s")
    assert client.status().fields["waits"] == [{"waits_for": "hold", "topic": "", "messages": 1}]
    assert client.admin.resume("absorbing") == Holds(START_MS, None)
    assert client.admin.resume(Held.RELEASES) == Holds(None, None)
    with pytest.raises(RequestError, match=r"'sends' cannot be held or resumed; use releases or absorbing"):
        client.admin.hold("sends")


def test_send_many_answers_each(client) -> None:
    answers = client.send_many([Draft("t", b"1"), Draft("bad topic", b"2"), Draft("t", b"3")])
    assert [isinstance(answer, SendResult) for answer in answers] == [True, False, True]


@pytest.mark.parametrize("kind", ["arrow", "pandas", "rows"])
def test_a_table_is_scheduled(client, kind) -> None:
    rows = {"body": ["a", "b"], "delay_ms": [1_000, 2_000], "key": ["x", "y"]}
    table = {
        "arrow": lambda: pa.table(rows),
        "pandas": lambda: pandas.DataFrame(rows),
        "rows": lambda: [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)],
    }[kind]()
    receipts = client.schedule(table, topic="t")
    assert [receipt.deliver_at_ms for receipt in receipts] == [START_MS + 1_000, START_MS + 2_000]
    assert [p.keys for p in client.pending("t")] == [("x",), ("y",)]


def test_the_iterator_acknowledges_what_was_worked_on(client) -> None:
    for number in range(5):
        client.send("t", str(number))
    seen = []
    for message in client.receive("t", "g", batch=1, wait=0, stop_when_idle=True):
        seen.append(message.id)
        if len(seen) == 3:
            break
    (group,) = client.groups.list()
    assert group.unsettled == {"t": 1}
    rest = [message.id for message in client.receive("t", "g", wait=0, stop_when_idle=True)]
    assert len(rest) == 2 and not set(rest) & set(seen)


def test_leaving_the_iterator_gives_back_what_it_had_fetched(client) -> None:
    for number in range(5):
        client.send("t", str(number))
    for message in client.receive("t", "g", wait=0, stop_when_idle=True):  # all five are fetched
        first = message
        break
    rest = client.receive_batch("t", "g")
    assert len(rest) == 4 and first.id not in {message.id for message in rest}
    assert {message.attempt for message in rest} == {1}
    assert client.requeue(*rest[1:], first) == [True] * 4
    assert {message.attempt for message in client.receive_batch("t", "g")} == {1}


def test_leaving_the_iterator_by_an_error_gives_back_too(client) -> None:
    for number in range(5):
        client.send("t", str(number))

    def work() -> None:
        for _ in client.receive("t", "g", wait=0, stop_when_idle=True):
            raise KeyError("of the user")

    with pytest.raises(KeyError):
        work()
    assert len(client.receive_batch("t", "g")) == 4


def test_an_iterator_of_tasks_gives_back_too(served) -> None:
    async def act() -> None:
        async with tidemill.AsyncClient(served.endpoint) as client:
            await client.send_many([Draft("t", b"x") for _ in range(5)])
            messages = client.receive("t", "g", wait=0, stop_when_idle=True)
            await anext(messages)
            await messages.aclose()
            rest = await client.receive_batch("t", "g")
            assert [message.attempt for message in rest] == [1] * 4

    asyncio.run(act())


def test_threads_share_requests_and_lose_nothing(client, served) -> None:
    ids: list[str] = []

    def send(number: int) -> None:
        ids.extend(client.send("t", b"x", delay="1h").id for _ in range(50))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 800
    assert client.status().sent == 800


def test_a_restarted_broker_is_waited_for_and_nothing_is_doubled(tmp_path) -> None:
    served = HttpBroker(tmp_path / "data").start()
    try:
        with tidemill.Client(served.endpoint, retry_for="60s") as client:
            client.send("t", b"before", delay="1h")
            sent: list[str] = []
            stop = threading.Event()

            def send() -> None:
                while not stop.is_set():
                    sent.append(client.send("t", b"x", delay="1h").id)

            threads = [threading.Thread(target=send) for _ in range(4)]
            for thread in threads:
                thread.start()
            while len(sent) < 20:
                stop.wait(0.002)
            served.stop()
            goal = len(sent) + 20
            served.start()
            while len(sent) < goal:
                stop.wait(0.002)
            stop.set()
            for thread in threads:
                thread.join()
            waiting = [p.id for p in client.pending("t", limit=10_000)]
            assert sorted(waiting) == sorted({*waiting})
            assert {*sent} <= {*waiting}
            assert len(waiting) == len(sent) + 1
    finally:
        served.stop()


def test_an_unreachable_broker_is_reported_with_what_to_do() -> None:
    with tidemill.Client("127.0.0.1:1", retry_for=0) as client:
        with pytest.raises(UnreachableError, match="tidemill serve"):
            client.status()


def test_tasks_do_the_same(served) -> None:
    async def act() -> None:
        async with tidemill.AsyncClient(served.endpoint) as client:
            receipts = await asyncio.gather(*(client.send("t", b"x", delay="1m") for _ in range(200)))
            assert len({receipt.id for receipt in receipts}) == 200
            assert await client.cancel(receipts[0].handle) is CancelAnswer.CANCELLED
            assert (await client.reschedule(receipts[1].handle, by="-30s")).is_moved
            with pytest.raises(RequestError):
                await client.send("bad topic", b"")
            await client.admin.advance("1m")
            seen = [m.id async for m in client.receive("t", "g", wait=0, stop_when_idle=True)]
            assert len(set(seen)) == 199
            assert (await client.status()).released == 199

    asyncio.run(act())


# -- wrong arguments, and those who only share a request with them --------------------------------


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda c: c.groups.set(""), "the name is empty"),
        (lambda c: c.topics.delete(""), "the name is empty"),
        (lambda c: c.topics.pause(None), "topic must be a text"),
        (lambda c: c.cancel_many("AAAA"), "as a list"),
        (lambda c: c.cancel_many([None]), "None is no handle"),
        (lambda c: c.cancel(None), "None is no handle; a message that is not timed has none"),
        (lambda c: c.reschedule(None, by="1m"), "None is no handle; a message that is not timed has none"),
        (lambda c: c.cancel("None"), "not a handle: 'None'; .* that is not timed does not have"),
        (lambda c: c.send("t", "x", delay=10**13), "delay_ms 10000000000000000 is .*3650d"),
        (lambda c: c.cancel_many(5), "as a list"),
        (lambda c: c.tables.store([1]), "list is not a table"),
    ],
)
def test_a_wrong_argument_is_refused_in_words(client, act, said) -> None:
    with pytest.raises(RequestError, match=said):
        act(client)


def test_handles_may_come_one_by_one(client, served) -> None:
    receipts = client.send_many([Draft("t", b"x", delay_ms=60_000) for _ in range(4)])
    assert client.cancel_many(r.handle for r in receipts[:2]) == [CancelAnswer.CANCELLED] * 2

    async def act() -> list[CancelAnswer]:
        async with tidemill.AsyncClient(served.endpoint) as client:
            return await client.cancel_many(r.handle for r in receipts[2:])

    assert asyncio.run(act()) == [CancelAnswer.CANCELLED] * 2


def test_an_empty_table_is_stored_whole(client) -> None:
    part = client.tables.store(pa.table({"body": pa.array([], pa.string())}), topic="t")
    assert (len(part), list(part.results())) == (0, [])


_WRONG = [
    ({"tag": 3}, "tag must be a text"),
    ({"level": "3"}, "level must be a whole number"),
    ({"properties": {"a": 1}}, "property a must be a text"),
    ({"properties": "a=b"}, "properties must be a mapping"),
    ({"key": "\ud800"}, "not valid Unicode"),
    ({"at": 10**11}, "beyond the limit of 3650d"),
    ({"at": 10**30}, "divide it by 1000"),
]


@pytest.mark.parametrize(("wrong", "said"), _WRONG)
def test_a_wrong_message_fails_no_other_send(served, wrong, said) -> None:
    async def scene() -> list[object]:
        async with tidemill.AsyncClient(served.endpoint) as client:
            sends = [client.send("t", b"x", **(wrong if n == 3 else {})) for n in range(8)]
            return await asyncio.gather(*sends, return_exceptions=True)

    answers = asyncio.run(scene())
    assert [n for n, answer in enumerate(answers) if not isinstance(answer, SendResult)] == [3]
    assert isinstance(answers[3], RequestError)
    assert said in str(answers[3])


def test_of_many_messages_the_wrong_one_is_refused_alone(client) -> None:
    drafts = [Draft("t", b"a"), Draft("t", b"b", tag=5), Draft("t", "text"), Draft("t", b"d")]  # type: ignore[arg-type]
    answers = client.send_many(drafts)
    assert [isinstance(answer, SendResult) for answer in answers] == [True, False, False, True]
    assert "body must be bytes" in str(answers[2])
    assert sorted(m.body for m in client.receive_batch("t", "g")) == [b"a", b"d"]


@pytest.mark.parametrize("wrong", [Draft("t", None), Draft("t", "text"), Draft(None, b"x"), "text", None])  # type: ignore[arg-type]
def test_a_draft_that_is_none_is_refused_and_delays_no_other(client, served, wrong) -> None:
    with pytest.raises(RequestError, match="must be"):
        client.send_draft(wrong)

    async def scene() -> None:
        async with tidemill.AsyncClient(served.endpoint) as tasks:
            with pytest.raises(RequestError, match="must be"):
                await tasks.send_draft(wrong)
            assert await asyncio.wait_for(tasks.send("t", b"x"), 120)

    asyncio.run(scene())
    assert client.send("t", b"x")
    refused, sent = client.send_many([wrong, Draft("t", b"x")])
    assert isinstance(refused, RequestError) and isinstance(sent, SendResult)


@pytest.mark.parametrize("body", [5, None, {"a": 1}, "\ud800"])
def test_what_is_no_body_is_refused(client, body) -> None:
    with pytest.raises(RequestError, match="body"):
        client.send("t", body)


def test_arguments_that_cannot_be_meant_are_refused(client, served) -> None:
    with pytest.raises(RequestError, match="keys must be a list"):
        client.send("t", b"x", keys="abc")
    with pytest.raises(RequestError, match="not a duration"):
        client.send("t", b"x", delay=float("nan"))
    with pytest.raises(RequestError, match=r"tags=\['a'\]"):
        client.receive_batch("t", "g", tags="a")
    with pytest.raises(RequestError, match="timeout"):
        tidemill.Client(served.endpoint, timeout=0)


@pytest.mark.parametrize("kind", [tidemill.Client, tidemill.AsyncClient])
def test_a_token_that_would_break_its_header_is_refused(kind) -> None:
    for token in ("a\r\nX: y", "a\n", 5):
        with pytest.raises(RequestError, match="token"):
            kind(token=token)
    assert kind(token=None)._token == ""


def test_a_closed_client_says_so(served) -> None:
    client = tidemill.Client(served.endpoint)
    client.close()
    with pytest.raises(RequestError, match="closed"):
        client.send("t", b"x")

    async def scene() -> None:
        async with tidemill.AsyncClient(served.endpoint) as gone:
            await gone.status()
        with pytest.raises(RequestError, match="closed"):
            await gone.send("t", b"x")

    asyncio.run(scene())


# -- leases and event loops -----------------------------------------------------------------------


def test_who_takes_long_over_each_message_is_given_none_twice(client, monkeypatch) -> None:
    spent_s = 0.0
    monkeypatch.setattr("tidemill.client.consume_verbs.stopwatch_s", lambda: spent_s)
    client.topics.create("slow", queues=1)
    for number in range(4):
        client.send("slow", str(number))
    seen = []
    other: list[tidemill.Message] = []
    for message in client.receive("slow", "g", lease="100ms", wait=0, stop_when_idle=True):
        seen.append(message.text)
        if len(seen) == 1:
            client.admin.advance("60ms")
            spent_s = 0.06
        elif len(seen) == 2:
            client.admin.advance("60ms")  # without a renewal the others would be free for other consumers now
            other = client.receive_batch("slow", "g")
    assert seen == ["0", "1", "2", "3"]
    assert other == []


def test_a_lease_that_is_always_half_over_holds_up_nothing(client, served, monkeypatch) -> None:
    """Each look at the stopwatch takes longer than the lease."""
    monkeypatch.setattr("tidemill.client.consume_verbs.stopwatch_s", count().__next__)
    for number in range(3):
        client.send("quick", str(number))
    options = {"lease": 0.001, "wait": 0, "stop_when_idle": True}
    assert len({m.text for m in client.receive("quick", "g", **options)}) == 3

    async def receive() -> set[str]:
        async with tidemill.AsyncClient(served.endpoint) as tasks:
            return {m.text async for m in tasks.receive("quick", "h", **options)}

    assert len(asyncio.run(receive())) == 3


def test_a_message_that_somebody_else_was_given_is_left_out(client, monkeypatch) -> None:
    spent_s = 0.0
    monkeypatch.setattr("tidemill.client.consume_verbs.stopwatch_s", lambda: spent_s)
    client.topics.create("slow", queues=1)
    for number in range(3):
        client.send("slow", str(number))
    seen = []
    for message in client.receive("slow", "g", lease="50ms", wait=0, stop_when_idle=True):
        seen.append(message.text)
        if len(seen) == 1:
            client.ack(message)
            client.admin.advance("51ms")
            others = client.receive_batch("slow", "g", lease="10m")
            spent_s = 0.051
    assert seen == ["0"]
    assert [message.text for message in others] == ["1", "2"]


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # loops end over open connections
def test_an_async_client_moves_to_the_next_loop_and_serves_one_at_a_time(served) -> None:
    client = tidemill.AsyncClient(served.endpoint)

    async def send() -> SendResult:
        return await client.send("t", b"x")

    assert len({asyncio.run(send()).id for _ in range(3)}) == 3

    async def elsewhere() -> None:
        await send()
        with ThreadPoolExecutor(1) as pool, pytest.raises(RequestError, match="another event loop"):
            await asyncio.get_running_loop().run_in_executor(pool, lambda: asyncio.run(send()))
        await client.close()

    asyncio.run(elsewhere())
    gc.collect()


@pytest.mark.parametrize("topic", ["a b", "unreachable"])
def test_an_error_of_a_send_is_let_go_of_without_the_garbage_collector(served, topic) -> None:
    errors: list[weakref.ref[TidemillError]] = []
    endpoint = served.endpoint if topic == "a b" else "127.0.0.1:1"

    async def tasks() -> None:
        async with tidemill.AsyncClient(endpoint, retry_for=0) as client:
            for _ in range(10):
                try:
                    await client.send(topic, b"x")
                except TidemillError as error:
                    errors.append(weakref.ref(error))

    gc.collect()
    gc.disable()
    try:
        with tidemill.Client(endpoint, retry_for=0) as client:
            for _ in range(10):
                try:
                    client.send(topic, b"x")
                except TidemillError as error:
                    errors.append(weakref.ref(error))
        asyncio.run(tasks())
        assert len(errors) == 20
        assert [error for error in errors if error() is not None] == []
    finally:
        gc.enable()
