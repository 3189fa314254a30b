"""Transactions and letters sent to the dead by hand."""

from __future__ import annotations

import pytest

from helpers.small_broker import START_MS
from tidemill.core.errors import (
    IllegalIdError,
    TidemillError,
    UnknownTopicError,
    UnknownTransactionError,
    WrongMessageTypeError,
)
from tidemill.core.model import CancelAnswer, Draft, TopicType


@pytest.fixture
def verbs(small):
    return small.broker.transactions


def test_a_transactional_message_is_invisible_until_it_is_committed(small, verbs):
    verbs.begin([Draft("t", b"body", id="x", keys=("k",), tag="a", properties={"p": "q"})])
    assert small.bodies("t") == []
    assert small.broker.status().pending == 0
    receipt = verbs.commit("t", "x")
    assert receipt.id == "x"
    (delivery,) = small.broker.receive("t", "g")
    message = delivery.message
    assert (message.body, message.keys, message.tag, dict(message.properties)) == (
        b"body",
        ("k",),
        "a",
        {"p": "q"},
    )


@pytest.mark.parametrize("level", [65_536, 10**17])
def test_a_half_may_ask_for_a_level_far_above_the_highest(small, verbs, level):
    verbs.begin([Draft("t", b"body", id="x", level=level)])
    small.kill_and_open()
    assert small.broker.transactions.commit("t", "x").deliver_at_ms == START_MS + 7_200_000


def test_a_rolled_back_half_is_gone_and_rolling_back_again_is_no_error(small, verbs):
    verbs.begin([Draft("t", b"body", id="x")])
    verbs.roll_back("t", "x")
    verbs.roll_back("t", "x")
    with pytest.raises(TidemillError):
        verbs.commit("t", "x")
    small.kill_and_open()
    assert small.bodies("t") == []


def test_a_delay_counts_from_the_commit_and_a_time_stays(small, verbs):
    drafts = [
        Draft("t", b"delay", id="d", delay_ms=5_000),
        Draft("t", b"level", id="l", level=3),
        Draft("t", b"time", id="t", deliver_at_ms=START_MS + 90_000),
    ]
    verbs.begin(drafts)
    small.advance(60_000)
    receipts = {name: verbs.commit("t", name) for name in "dlt"}
    due = {name: receipt.deliver_at_ms - START_MS for name, receipt in receipts.items()}
    assert due == {"d": 65_000, "l": 70_000, "t": 90_000}
    assert small.broker.cancel([receipts["l"].handle]) == [CancelAnswer.CANCELLED]
    small.advance(60_000)
    assert small.bodies("t") == [b"delay", b"time"]


def test_a_half_survives_a_kill_and_can_be_ended_after(small, verbs):
    verbs.begin([Draft("t", b"1", id="x"), Draft("t", b"2", id="y", delay_ms=10)])
    small.kill_and_open()
    again = small.broker.transactions
    assert sorted(half.message_id for half in again.halves()) == ["x", "y"]
    again.commit("t", "x")
    again.commit("t", "y")
    small.advance(10)
    assert sorted(small.bodies("t")) == [b"1", b"2"]
    assert again.halves() == []


def test_committing_twice_answers_as_the_first_time(small, verbs):
    verbs.begin([Draft("t", b"1", id="x", delay_ms=10_000)])
    first = verbs.commit("t", "x")
    again = verbs.commit("t", "x")
    assert (again.id, again.handle, again.deliver_at_ms) == (first.id, first.handle, first.deliver_at_ms)
    assert small.broker.status().pending == 1


@pytest.mark.parametrize("delay_ms", [None, 10_000])
def test_what_is_committed_cannot_be_rolled_back(small, verbs, delay_ms):
    verbs.begin([Draft("t", b"1", id="x", delay_ms=delay_ms)])
    verbs.commit("t", "x")
    for _ in range(2):
        with pytest.raises(UnknownTransactionError, match="is committed; it cannot be rolled back"):
            small.broker.transactions.roll_back("t", "x")
        small.kill_and_open()
    small.advance(10_000)
    assert small.bodies("t") == [b"1"]


@pytest.mark.parametrize("delay_ms", [None, 10_000])
def test_a_half_that_comes_again_after_its_commit_makes_no_second_message(small, verbs, delay_ms):
    draft = Draft("t", b"1", id="x", delay_ms=delay_ms)
    verbs.begin([draft])
    first = verbs.commit("t", "x")
    (again,) = verbs.begin([draft])
    assert again.id == "x"
    assert verbs.halves() == []
    assert verbs.commit("t", "x").handle == first.handle
    small.advance(10_000)
    assert small.bodies("t") == [b"1"]


def test_a_half_needs_an_id_and_a_topic_that_takes_it(small, verbs):
    small.broker.topics.create("plain", TopicType.NORMAL)
    end = small.log_end
    with pytest.raises(IllegalIdError):
        verbs.begin([Draft("t", b"")])
    with pytest.raises(WrongMessageTypeError):
        verbs.begin([Draft("new", b"", id="a"), Draft("plain", b"", id="b")])
    with pytest.raises(UnknownTopicError):
        verbs.begin([Draft("missing", b"", id="b")], creates_topics=False)
    assert small.log_end == end


def test_a_deleted_topic_takes_its_halves_along(small, verbs):
    verbs.begin([Draft("t", b"1", id="x")])
    small.broker.topics.delete("t", is_forced=True)
    assert verbs.halves() == []
    small.kill_and_open()
    assert small.broker.store.open_transactions == {}
