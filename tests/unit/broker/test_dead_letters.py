"""Forwarding to the dead letters: out of the topic, into `%DLQ%group`, exactly once."""

from __future__ import annotations

import pytest

from tidemill.core.errors import InvalidAckTokenError
from tidemill.core.model import Draft


def test_a_forwarded_message_is_settled_and_kept(small):
    small.broker.send([Draft("t", b"poison", id="A", properties={"colour": "red"})])
    (delivery,) = small.broker.receive("t", "g")
    assert small.broker.dead_letter([delivery.ack_token])[0]
    assert not small.broker.dead_letter([delivery.ack_token])[0]
    assert small.broker.ack([delivery.ack_token]) == [False]
    small.clock.advance(3_600_000)
    assert small.broker.receive("t", "g") == []
    (letter,) = small.broker.receive("%DLQ%g", "burial")
    assert letter.message.body == b"poison"
    assert letter.message.properties == {
        "colour": "red",
        "DLQ_ORIGIN_TOPIC": "t",
        "DLQ_ORIGIN_MESSAGE_ID": "A",
        "RECONSUME_TIME": "1",
    }


def test_it_survives_a_restart(small):
    small.broker.send([Draft("t", b"poison")])
    (delivery,) = small.broker.receive("t", "g")
    small.broker.dead_letter([delivery.ack_token])
    small.reopen()
    small.clock.advance(3_600_000)
    assert small.broker.receive("t", "g") == []
    assert len(small.broker.receive("%DLQ%g", "burial")) == 1


def test_a_receipt_of_an_earlier_attempt_forwards_nothing(small):
    small.broker.send([Draft("t", b"once more")])
    (first,) = small.broker.receive("t", "g", invisible_ms=1_000)
    small.clock.advance(1_000)
    (second,) = small.broker.receive("t", "g")
    assert not small.broker.dead_letter([first.ack_token])[0]
    assert small.broker.ack([second.ack_token]) == [True]
    with pytest.raises(InvalidAckTokenError):
        small.broker.dead_letter(["nonsense"])


def test_a_receipt_that_settles_nothing_leaves_no_topic_behind(small):
    small.send("work", b"a")
    (delivery,) = small.broker.receive("work", "g")
    assert small.broker.ack([delivery.ack_token]) == [True]
    end = small.log_end
    assert not small.broker.dead_letter([delivery.ack_token])[0]
    assert small.log_end == end
    assert [topic.name for topic in small.broker.views.topics()] == ["work"]
