"""One contract for a client of a served broker and for a broker in the process: the same code and answers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest

import tidemill
from helpers.http_broker import http_broker
from tidemill.client.client import BlockingVerbs
from tidemill.client.operations import Operations
from tidemill.core.clock import SimulatedClock
from tidemill.core.model import Draft, Once
from tidemill.embedded.embedded_operations import EmbeddedOperations

START_MS = 1_800_000_000_000
_BY_BOTH = {"cancel_many", "schedule", "flight", "is_closed"}  # made of the others


@pytest.fixture(params=["client", "embedded"])
def broker(request, tmp_path: Path) -> Iterator[BlockingVerbs]:
    clock = SimulatedClock(START_MS)
    if request.param == "embedded":
        with tidemill.open(tmp_path / "data", clock=clock) as embedded:
            yield embedded
    else:
        with (
            http_broker(tmp_path / "data", clock=clock) as served,
            tidemill.Client(served.endpoint) as client,
        ):
            yield client


def test_a_message_is_sent_found_cancelled_and_moved(broker) -> None:
    result = broker.send("orders", b"close 17", delay=1_800, key="17", tag="a", properties={"p": "q"})
    assert (result.topic, result.deliver_at_ms, result.queue) == ("orders", START_MS + 1_800_000, None)
    (waiting,) = broker.pending("orders", key="17")
    assert (waiting.handle, waiting.id, waiting.keys, waiting.body_bytes) == (
        result.handle,
        result.id,
        ("17",),
        8,
    )
    (found,) = broker.find("orders", "17")
    assert (found.id, found.topic, found.body, found.state, found.released_at_ms) == (
        result.id,
        "orders",
        b"close 17",
        "pending",
        None,
    )
    moved = broker.reschedule(result.handle, by="1h")
    assert (moved.is_moved, moved.deliver_at_ms, moved.answer) == (True, START_MS + 5_400_000, None)
    assert broker.reschedule_where("orders", key="17", at=START_MS / 1_000 + 60) == 1
    assert sum(minute.due for minute in broker.forecast("orders")) == 1
    assert (
        broker.cancel(str(broker.pending("orders")[0].handle), request_id="r")
        is tidemill.CancelAnswer.CANCELLED
    )
    assert broker.cancel(result.handle) is tidemill.CancelAnswer.ALREADY_CANCELLED
    assert broker.reschedule(result.handle, delay=1).answer is tidemill.CancelAnswer.ALREADY_CANCELLED
    more = [broker.send("orders", "x", delay="1h", once=True, key=str(n)).handle for n in range(3)]
    assert broker.cancel_where("orders", start=START_MS / 1_000, end=START_MS / 1_000 + 10**6) == 3
    assert set(broker.cancel_many(more)) == {tidemill.CancelAnswer.ALREADY_CANCELLED}
    assert broker.status().cancelled == 4


def test_messages_are_received_and_settled_in_every_way(broker) -> None:
    broker.groups.set("g", max_attempts=2, backoff="7s", is_fifo=False)
    assert [group.max_attempts for group in broker.groups.list()] == [2]
    broker.send("jobs", "one", key="k", message_group="m", properties={"p": "q"})
    (first,) = broker.receive_batch("jobs", "g", lease=30)
    assert (first.text, first.key, first.attempt, first.message_group) == ("one", "k", 1, "m")
    assert (first.properties, first.deliver_at_ms, first.via) == ({"p": "q"}, None, "direct")
    assert first.lease_until_ms == START_MS + 30_000
    assert broker.extend(first, lease="1m") == [True]
    assert broker.requeue(first) == [True]
    (again,) = broker.receive_batch("jobs", "g")
    assert broker.ack(first) == [False]  # it was delivered again
    assert again.attempt == 1  # it was not tried
    (nacked,) = broker.nack(again)
    assert (nacked.answer, nacked.deliver_at_ms) == ("again", START_MS + 7_000)
    broker.admin.advance(7)
    (last,) = broker.receive_batch("jobs", "g")
    assert [one.answer for one in broker.nack(last, delay=5)] == ["dead"]
    (letter,) = broker.dead_letters.list("g")
    assert (letter.id, letter.topic, letter.attempts, letter.body) == (first.id, "jobs", 2, b"one")
    assert broker.dead_letters.resend("g") == 1
    assert broker.dead_letters.list() == []
    (resent,) = broker.receive_batch("jobs", "g")
    assert broker.dead_letter(resent) == [True]
    assert broker.dead_letter(resent) == [False]
    broker.send("jobs", "two", key="k2", properties={"r": "s"})
    (failed,) = broker.receive_batch("jobs", "h")[-1:]
    (waiting,) = broker.nack(failed, level=5)
    assert waiting.handle is not None
    (found,) = broker.find(waiting.handle.topic, "k2")
    assert (found.properties, found.broker_properties["RETRY_TOPIC"]) == ({"r": "s"}, "jobs")
    assert broker.cancel(waiting.handle) is tidemill.CancelAnswer.CANCELLED
    broker.send("more", "three")
    seen = [message.text for message in broker.receive("more", "g", wait=0, stop_when_idle=True)]
    assert seen == ["three"]
    with pytest.raises(tidemill.RequestError, match="not an ack token"):
        broker.ack("nonsense")


def test_topics_groups_holds_and_tables(broker, tmp_path: Path) -> None:
    made = broker.topics.create("orders", "delay", queues=2)
    assert (made.name, made.type.value, made.queues, made.is_paused) == ("orders", "delay", 2, False)
    assert broker.topics.pause("orders").is_paused
    assert not broker.topics.resume("orders").is_paused
    assert broker.topics.limit("orders", 7).release_rate_max == 7
    assert [topic.name for topic in broker.topics.list()] == ["orders"]
    assert broker.admin.hold("releases").releases_since_ms == START_MS
    assert broker.admin.resume("releases").releases_since_ms is None
    table = pa.table({"body": ["a", "b"], "delay_ms": [60_000, 120_000], "key": ["x", "y"]})
    stored = broker.schedule(table, topic="orders", jitter=0)
    assert [result.deliver_at_ms for result in stored] == [START_MS + 60_000, START_MS + 120_000]
    mixed = broker.schedule([{"body": "c", "delay_ms": 5}, {"body": None}], topic="orders")
    assert (len(mixed), list(mixed.errors)) == (2, [1])
    answers = broker.send_many([tidemill.Draft("orders", b"", delay_ms=1), tidemill.Draft("no good", b"")])
    assert [type(answer) for answer in answers] == [tidemill.SendResult, tidemill.IllegalTopicError]
    assert broker.admin.advance(to=START_MS / 1_000 + 3_600) == START_MS + 3_600_000
    assert broker.status().released == 4
    assert broker.admin.damaged() == []
    broker.groups.reset("g", "orders", START_MS / 1_000)
    copy = broker.admin.backup(str(tmp_path / "copy"))
    assert (copy.pending, broker.admin.backup_progress()) == (0, (0, 0))
    assert broker.topics.delete("orders", force=True) == 0


@pytest.mark.parametrize(
    ("act", "kind", "said"),
    [
        (lambda b: b.send("no good", "x"), tidemill.IllegalTopicError, "topic"),
        (lambda b: b.send("t", "x", delay=1, at=2), tidemill.RequestError, "deliver_at_ms|delay"),
        (lambda b: b.send("t", "x", at=datetime(2027, 1, 1)), tidemill.RequestError, "no time zone"),  # noqa: DTZ001
        (lambda b: b.pending("missing"), tidemill.UnknownTopicError, "missing"),
        (lambda b: b.topics.delete("missing"), tidemill.UnknownTopicError, "missing"),
        (lambda b: b.cancel("nonsense"), tidemill.IllegalHandleError, "not a handle"),
        (lambda b: b.cancel_where("t"), tidemill.RequestError, "both ends of a range"),
        (lambda b: b.reschedule("nonsense", at=1, by=1), tidemill.RequestError, "exactly one"),
        (lambda b: b.nack("x", delay=1, level=1), tidemill.RequestError, "not both"),
        (lambda b: b.admin.hold("everything"), tidemill.RequestError, "releases or absorbing"),
        (lambda b: b.receive_batch("t", "g", tags=[]), tidemill.RequestError, "tags is empty"),
        (lambda b: b.receive_batch("t", "g", tags=[5]), tidemill.RequestError, "each of tags must be a text"),
        (lambda b: next(b.receive("t", "g", tags=[])), tidemill.RequestError, "tags is empty"),
        (lambda b: b.receive_batch("t", "g", tags=5), tidemill.RequestError, "a list of texts"),
        (lambda b: b.receive_batch("t", "g", lease=0), tidemill.RequestError, "lease_ms 0"),
        (lambda b: b.receive_batch("t", "g", lease="7300d"), tidemill.RequestError, "lease_ms"),
        (lambda b: b.receive_batch("t", "g", count=True), tidemill.RequestError, "count must be a whole"),
        (lambda b: b.receive_batch("t", "g", count="1"), tidemill.RequestError, "count must be a whole"),
        (lambda b: b.receive_batch("t", None), tidemill.RequestError, "group must be a text"),
        (lambda b: b.extend("x", lease=-1), tidemill.RequestError, "lease_ms -1000"),
        (lambda b: b.nack("x", level=True), tidemill.RequestError, "level must be a whole"),
        (lambda b: b.topics.create("x", type="foo"), tidemill.RequestError, "one of normal, delay"),
        (lambda b: b.topics.create("x", queues=True), tidemill.RequestError, "queues must be a whole"),
        (lambda b: b.topics.limit("t", None), tidemill.RequestError, "per_second must be a whole"),
        (lambda b: b.topics.delete(5), tidemill.RequestError, "topic must be a text"),
        (lambda b: b.groups.set("g", backoff=[]), tidemill.RequestError, "backoff must be a text"),
        (lambda b: b.groups.set("g", max_attempts=True), tidemill.RequestError, "max_attempts must be"),
        (lambda b: b.groups.set("g", is_fifo="yes"), tidemill.RequestError, "is_fifo must be True or False"),
        (lambda b: b.groups.set("g", start="now"), tidemill.RequestError, "use first or last"),
        (lambda b: b.pending(key=5), tidemill.RequestError, "key must be a text"),
        (lambda b: b.pending(key=""), tidemill.RequestError, "key is empty"),
        (lambda b: b.pending(limit=10**9), tidemill.RequestError, "limit 1000000000 is not possible"),
        (lambda b: b.find("t", 5), tidemill.RequestError, "key must be a text"),
        (lambda b: b.forecast(horizon="100d"), tidemill.RequestError, "horizon_ms"),
        (lambda b: b.cancel_where("t", key=""), tidemill.RequestError, "key is empty"),
        (lambda b: b.dead_letters.list(5), tidemill.RequestError, "group must be a text"),
        (lambda b: b.dead_letters.resend("g", [5]), tidemill.RequestError, "each of ids must be a text"),
        (lambda b: b.admin.backup(None), tidemill.RequestError, "directory must be a text"),
        (lambda b: b.admin.damaged(limit=0), tidemill.RequestError, "limit 0"),
    ],
)
def test_the_same_errors_are_raised(broker, act, kind, said) -> None:
    with pytest.raises(kind, match=said):
        act(broker)


def test_an_answer_to_nack_is_a_plain_text(broker) -> None:
    broker.send("t", "x")
    (message,) = broker.receive_batch("t", "g")
    for answer in (*broker.nack(message), *broker.nack(message, level=1)):
        assert type(answer.answer) is str


@pytest.mark.parametrize(
    ("draft", "kind", "said"),
    [
        (Draft("t", b"x", delay_ms=1_000, once=Once.KEEP), tidemill.IllegalKeyError, "needs a key, or an id"),
        (Draft("t", b"x", carried=None), tidemill.RequestError, "carried must be a mapping"),
        (Draft("t", b"x", id=""), tidemill.IllegalIdError, "of 0 characters"),
    ],
)
def test_a_draft_that_means_nothing_is_refused(broker, draft, kind, said) -> None:
    with pytest.raises(kind, match=said):
        broker.send_draft(draft)
    if draft.carried is not None:  # it never travels
        bad, good = broker.send_many([draft, Draft("t", b"y")])
        assert isinstance(bad, kind) and isinstance(good, tidemill.SendResult)


def test_an_empty_id_is_refused_and_what_is_none_is_left_out(broker) -> None:
    with pytest.raises(tidemill.IllegalIdError, match="of 0 characters"):
        broker.send("t", "x", id="")
    wrong, right = broker.schedule([{"body": "x", "id": ""}, {"body": "y", "id": None}], topic="t")
    assert isinstance(wrong, tidemill.IllegalIdError) and isinstance(right, tidemill.SendResult)
    assert broker.send("t", "x", tag=None, message_group=None, keys=None, properties=None).id


def test_a_level_beyond_the_wires_numbers_is_clamped_with_a_note(broker) -> None:
    assert broker.send("t", "x", level=40_000).note == "level 40000 is above the highest, 18 was used"


def test_a_row_that_is_not_timed_has_no_time(broker) -> None:
    (answer,) = broker.schedule(pa.table({"body": ["x"]}), topic="t")
    assert (answer.deliver_at_ms, answer.handle) == (None, None)


def test_every_operation_is_answered_by_an_embedded_broker_itself() -> None:
    asked = {name for name in vars(Operations) if not name.startswith("_")} - _BY_BOTH
    assert asked == {name for name in vars(EmbeddedOperations) if not name.startswith("_")}


def test_an_embedded_broker_has_the_verbs_of_a_client(tmp_path: Path) -> None:
    with tidemill.open(tmp_path / "data") as embedded, tidemill.Client("127.0.0.1:1") as client:
        names = {name for name in dir(client) if not name.startswith("_")} - {"endpoint"}
        assert names == {name for name in dir(embedded) if not name.startswith("_")} - {"broker"}
        for name in names - {"close"}:
            if callable(getattr(client, name)):
                assert inspect.signature(getattr(client, name)) == inspect.signature(getattr(embedded, name))


def test_what_is_closed_stays_closed(tmp_path: Path) -> None:
    embedded = tidemill.open(tmp_path / "data")
    embedded.send("t", "x", delay="1h")
    assert embedded.close().pending == 1
    with pytest.raises(tidemill.BrokerClosedError):
        embedded.send("t", "x")
    assert fields(embedded.close())  # once more does no harm


def test_tables_of_an_embedded_broker(tmp_path: Path) -> None:
    with tidemill.open(tmp_path / "data", clock=SimulatedClock(START_MS)) as broker:
        part = broker.tables.store(pa.table({"body": ["a", "b"], "delay_ms": [1, 60_000]}), topic="t")
        assert [result.deliver_at_ms for result in part.results()] == [START_MS + 1, START_MS + 60_000]
        assert broker.tables.pending("t", columns=["id", "seq"]).num_rows == 2
        tickets = broker.tables.parts({"table": "pending", "columns": ["topic", "id", "seq"]}, 3)
        rows = [batch for ticket in tickets for batch in broker.tables.stream(ticket)]
        assert sum(batch.num_rows for batch in rows) == 2
        answers = broker.tables.cancel(pa.Table.from_batches(rows))
        assert answers.to_pylist() == ["cancelled"] * 2
        assert broker.tables.history().num_rows == 0
        assert "deliver_at" in broker.tables.schema({"table": "pending"}).names
        with pytest.raises(tidemill.RequestError):
            broker.tables.read({"table": "none"})
