"""An error in the middle of many messages is the answer of those that have none; the others keep theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import tidemill
from helpers.http_broker import HttpBroker, http_broker
from tidemill.client.tables import flight_link
from tidemill.core.clock import SimulatedClock
from tidemill.core.config import BrokerSettings
from tidemill.core.errors import (
    DiskFullError,
    IllegalIdError,
    RequestError,
    TooManyRequestsError,
    UnreachableError,
)
from tidemill.core.model import Draft, SendResult
from tidemill.server.flight.flight_server import FlightServer

START_MS = 1_800_000_000_000
_BATCH = 4


@pytest.fixture
def served(tmp_path: Path) -> Iterator[HttpBroker]:
    settings = BrokerSettings(due_per_tick_max=3)
    with http_broker(tmp_path / "data", SimulatedClock(START_MS), settings) as served:
        yield served


@pytest.fixture(params=["flight", "embedded"])
def broker(request, tmp_path: Path, monkeypatch):
    """Stores a table four rows at a time, at most three of them in a tick."""
    monkeypatch.setattr(flight_link, "FRAME_ROWS_MAX", _BATCH)
    if request.param == "embedded":
        with tidemill.open(tmp_path / "own", clock=SimulatedClock(START_MS), due_per_tick_max=3) as embedded:
            yield embedded
        return
    served = request.getfixturevalue("served")
    server = FlightServer(served.broker)
    said = {"flight": {"port": server.port, "tls": False, "broker": served.broker.id}}
    with tidemill.Client(served.endpoint, retry_for=0) as client:
        client._flight._health = lambda: said
        yield client
    server.close()


def _table(due_ms: list[int], **more: list[object]) -> pa.Table:
    return pa.table({"body": [b"x"] * len(due_ms), "deliver_at_ms": due_ms, **more})


def _apart(count: int) -> list[int]:
    return [START_MS + 60_000 * number for number in range(1, count + 1)]


def test_rows_that_are_stored_keep_their_answers_when_the_broker_is_busy(broker) -> None:
    due = _apart(8) + [START_MS + 3_600_000] * 4 + _apart(2)
    ids = [f"id-{row}" for row in range(len(due))]
    answers = broker.schedule(_table(due, id=ids), topic="t")
    assert [answer.id for answer in answers[:8]] == ids[:8]
    assert sorted(answers.errors) == list(range(8, 14))
    for answer in answers[8:]:
        assert isinstance(answer, TooManyRequestsError)
        assert str(answer).startswith("the rows 8 to 13 of the table were not stored: row 11: too")
    again = broker.schedule(_table(due[:8], id=ids[:8]), topic="t")
    assert [answer.is_repeat for answer in again] == [True] * 8
    assert broker.status().pending == 8


def test_an_error_before_the_first_row_has_its_answer_is_raised(broker) -> None:
    with pytest.raises(TooManyRequestsError, match="rows 0 to 5 of the table were not stored: row 3: too"):
        broker.schedule(_table([START_MS + 3_600_000] * 6), topic="t")
    assert broker.status().pending == 0


def test_rows_after_a_wrong_one_keep_their_answers_too(broker, monkeypatch) -> None:
    due, tags = _apart(4) + [START_MS + 3_600_000] * 4, ["a|b", *["fine"] * 7]
    answers = broker.schedule(_table(due, tag=tags), topic="t")
    assert isinstance(answers[0], RequestError)
    assert all(isinstance(answer, SendResult) for answer in answers[1:4])
    assert all(isinstance(answer, TooManyRequestsError) for answer in answers[4:])


def test_an_empty_id_is_refused_in_its_row(broker) -> None:
    ids = ["a", "b", "c", "d", "e", "", None, "h", "i", "j"]
    answers = broker.schedule(_table(_apart(10), id=ids), topic="t")
    assert {row: type(error) for row, error in answers.errors.items()} == {5: IllegalIdError}
    assert broker.status().pending == 9
    with pytest.raises(IllegalIdError, match="an id is empty"):
        broker.tables.store(_table(_apart(2), id=["x", ""]), topic="t")


def test_rows_whose_outcome_is_unknown_say_so(served, monkeypatch) -> None:
    monkeypatch.setattr(flight_link, "FRAME_ROWS_MAX", _BATCH)
    whole = flight_link._put

    def lost(client, batches, *rest):
        if len(batches) < 3:
            raise UnreachableError("the Flight endpoint does not answer")
        whole(client, batches[:1], *rest)
        raise UnreachableError("the Flight endpoint does not answer")

    monkeypatch.setattr(flight_link, "_put", lost)
    server = FlightServer(served.broker)
    said = {"flight": {"port": server.port, "tls": False, "broker": served.broker.id}}
    with tidemill.Client(served.endpoint, retry_for=0) as client:
        client._flight._health = lambda: said
        answers = client.schedule(_table(_apart(12)), topic="t")
    server.close()
    assert all(isinstance(answer, SendResult) for answer in answers[:4])
    assert {type(answer) for answer in answers[4:]} == {UnreachableError}
    assert "the rows 4 to 11 of the table have no answer, and whether they are stored is not known" in str(
        answers[4]
    )


# -- drafts ---------------------------------------------------------------------------------------


def _drafts(count: int) -> list[Draft]:
    return [Draft("t", b"x", delay_ms=60_000 * number, id=f"id-{number}") for number in range(count)]


def _fails_after(act, fault):
    """Does it once, then raises."""
    calls = []

    def once(*args):
        calls.append(args)
        if len(calls) > 1:
            raise fault
        return act(*args)

    return once


@pytest.mark.parametrize("fault", [TooManyRequestsError("slow down"), UnreachableError("gone")])
def test_drafts_that_are_stored_keep_their_answers(served, fault, monkeypatch) -> None:
    with tidemill.Client(served.endpoint, retry_for=0) as client:
        monkeypatch.setattr(client, "_send_whole", _fails_after(client._send_whole, fault))
        answers = client.send_many(iter(_drafts(4096 + 4096 + 5)))
        assert [answer.id for answer in answers[:4096]] == [draft.id for draft in _drafts(4096)]
        assert answers[4096:] == [fault] * 4101
        with pytest.raises(type(fault)):  # nothing has an answer
            client.send_many(_drafts(2))
        with pytest.raises(type(fault)):
            client.send("t", b"x")


def test_tasks_keep_them_too(served, monkeypatch) -> None:
    fault = UnreachableError("gone")

    async def run() -> None:
        async with tidemill.AsyncClient(served.endpoint, retry_for=0) as client:
            whole = client._send_whole

            async def once(drafts):
                if drafts[0].id != "id-0":
                    raise fault
                return await whole(drafts)

            monkeypatch.setattr(client, "_send_whole", once)
            answers = await client.send_many(_drafts(4100))
            assert all(isinstance(answer, SendResult) for answer in answers[:4096])
            assert answers[4096:] == [fault] * 4

    asyncio.run(run())


def test_drafts_of_an_embedded_broker_keep_them_too(tmp_path: Path, monkeypatch) -> None:
    fault = DiskFullError("the disk is full")
    with tidemill.open(tmp_path / "own", clock=SimulatedClock(START_MS)) as broker:
        monkeypatch.setattr(broker.broker, "send_each", _fails_after(broker.broker.send_each, fault))
        answers = broker.send_many(_drafts(4100))
    assert all(isinstance(answer, SendResult) for answer in answers[:4096])
    assert answers[4096:] == [fault] * 4


def test_half_a_request_that_is_stored_keeps_its_answers(served, monkeypatch) -> None:
    fault = UnreachableError("gone")
    with tidemill.Client(served.endpoint, retry_for=0) as client:
        whole = client._send_whole

        def half(drafts):
            if [draft.id for draft in drafts] == ["second"]:
                raise fault
            return whole(drafts)

        monkeypatch.setattr(client, "_send_whole", half)
        # A tag that cannot be encoded, so that each half is a request of its own.
        wrong = Draft("t", b"x", tag=5, id="third")  # type: ignore[arg-type]
        first, second = Draft("t", b"x", id="first"), Draft("t", b"x", id="second")
        answers = client.send_many([first, Draft("t", b"x", id="1b"), second, wrong])
    assert [type(answer) for answer in answers] == [SendResult] * 2 + [UnreachableError] * 2


def test_an_answer_survives_that_another_message_is_sent_again(served, monkeypatch) -> None:
    fault = UnreachableError("gone")
    with tidemill.Client(served.endpoint, retry_for="1s") as client:
        monkeypatch.setattr(client, "_send_whole", _fails_after(client._send_whole, fault))
        answers = client.send_many([Draft("t", b"x", delay_ms=3_600_000) for _ in range(5)])
    assert [isinstance(answer, SendResult) for answer in answers] == [True] * 3 + [False] * 2
    assert answers[3:] == [fault] * 2
