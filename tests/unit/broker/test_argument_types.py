"""Arguments of the wrong kind have clear errors, and nothing of them reaches the log."""

from __future__ import annotations

import pytest

from tidemill.core.errors import IllegalHandleError, RequestError
from tidemill.core.model import Draft, Handle


@pytest.mark.parametrize(
    "fields",
    [
        {"body": "text"},
        {"body": None},
        {"topic": None},
        {"topic": b"t"},
        {"level": 1.5},
        {"delay_ms": "5"},
        {"delay_ms": float("nan")},
        {"deliver_at_ms": 1.5},
        {"deliver_at_ms": True},
        {"born_at_ms": 1 << 70},
        {"tag": None},
        {"keys": "abc"},
        {"keys": (5,)},
        {"properties": None},
        {"properties": {"a": 5}},
        {"properties": {5: "a"}},
        {"id": 5},
        {"message_group": None},
        {"once": "keep"},
    ],
)
def test_a_draft_of_wrong_kinds_is_refused_before_anything_is_written(small, fields):
    end = small.broker.store.log.written_end
    with pytest.raises(RequestError, match=r"must be|not possible"):
        small.broker.send([Draft(**{"topic": "t", "body": b"x", **fields})])
    assert small.broker.store.log.written_end == end


@pytest.mark.parametrize("drafts", [None, [None], Draft("t", b"x"), "t"])
def test_what_is_sent_must_be_a_list_of_drafts(small, drafts):
    with pytest.raises(RequestError, match="must be"):
        small.broker.send(drafts)


def test_one_wrong_draft_among_many_gets_its_own_answer(small):
    answers = small.broker.send_each([Draft("t", b"x"), None, Draft("t", b"y")])
    assert [isinstance(answer, RequestError) for answer in answers] == [False, True, False]


@pytest.mark.parametrize("handles", [None, [None], ["text"], Handle("b", "t", "i", 1)])
def test_what_is_cancelled_must_be_a_list_of_handles(small, handles):
    with pytest.raises(RequestError, match="must be"):
        small.broker.cancel(handles)


def test_a_handle_with_an_impossible_number_is_no_handle(small):
    with pytest.raises(IllegalHandleError):
        small.broker.cancel([Handle(small.broker.id, "t", "i", 1 << 70)])


@pytest.mark.parametrize(
    ("topic_type", "queues"), [("bogus", 4), ("mixed", 1.5), ("mixed", "4"), ("mixed", 0), (None, 4)]
)
def test_a_topic_of_wrong_kind_is_refused_and_the_directory_stays_sound(small, topic_type, queues):
    with pytest.raises(RequestError):
        small.broker.topics.create("c", topic_type, queues)
    small.broker.send([Draft("t", b"x")])


def test_a_topic_type_may_be_given_by_its_name(small):
    assert small.broker.topics.create("c", "delay").type.value == "delay"


def test_settings_of_a_topic_must_be_of_their_kind(small):
    small.broker.topics.create("c")
    for change in ({"is_paused": "no"}, {"release_rate_max": 1.5}, {"release_rate_max": "x"}):
        with pytest.raises(RequestError, match="must be"):
            small.broker.topics.change("c", **change)


@pytest.mark.parametrize("horizon_ms", [-1, 0, 1 << 62, 1.5])
def test_a_forecast_has_a_horizon_that_can_be_drawn(small, horizon_ms):
    with pytest.raises(RequestError):
        small.broker.views.forecast(horizon_ms=horizon_ms)
