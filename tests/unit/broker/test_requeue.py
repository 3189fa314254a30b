"""Deliveries returned untried count no attempt, and an old ack token does not settle a new delivery."""

from __future__ import annotations

import base64

from tidemill.broker.consume.retries import SendBackAnswer
from tidemill.store.consumers.consumer_state import ConsumerState


def _take(small, topic="t"):
    (delivery,) = small.broker.receive(topic, "g", count=1, invisible_ms=30_000)
    return delivery


def _give_back(small, delivery, **how) -> bool:
    (is_valid,) = small.broker.change_invisibility([delivery.ack_token], 0, **{"is_untried": True, **how})
    return is_valid


def test_what_is_given_back_untried_keeps_its_attempts(small):
    small.broker.receiver.set_group("g", attempts_max=2)
    small.send("t", b"patient")
    ack_tokens = set()
    for _ in range(10):
        delivery = _take(small)
        assert delivery.attempt == 1
        ack_tokens.add(delivery.ack_token)
        assert _give_back(small, delivery)
    assert len(ack_tokens) == 10
    assert _give_back(small, _take(small), is_untried=False)
    delivery = _take(small)
    assert delivery.attempt == 2
    assert _give_back(small, delivery)
    delivery = _take(small)
    assert delivery.attempt == 2
    assert _give_back(small, delivery, is_untried=False)
    assert small.broker.receive("t", "g") == []
    (letter,) = small.broker.dead_letters.waiting("g")
    assert (letter.message.body, letter.attempts) == (b"patient", 2)


def test_an_old_receipt_settles_no_later_delivery(small):
    small.send("t")
    old = _take(small)
    assert _give_back(small, old)
    new = _take(small)
    assert not _give_back(small, old)
    assert small.broker.ack([old.ack_token]) == [False]
    assert small.broker.ack([new.ack_token]) == [True]
    small.advance(60_000)
    assert small.broker.receive("t", "g") == []


def test_given_back_twice_is_given_back_once(small):
    small.broker.receiver.set_group("g", attempts_max=2)
    small.send("t")
    delivery = _take(small)
    assert _give_back(small, delivery)
    assert _give_back(small, delivery)  # a client that did not hear the answer asks again
    assert [_take(small).attempt, small.broker.receive("t", "g")] == [1, []]
    small.advance(30_000)
    assert _take(small).attempt == 2


def test_it_is_known_after_a_crash_and_from_a_checkpoint(small):
    for _ in range(3):
        small.send("t")
    first, second, third = small.broker.receive("t", "g")
    assert all(_give_back(small, delivery) for delivery in (first, second))
    small.kill_and_open()
    small.broker.store.checkpoint()
    small.kill_and_open()
    assert small.broker.ack([third.ack_token]) == [True]
    again = small.broker.receive("t", "g")
    assert [delivery.attempt for delivery in again] == [1, 1]
    assert small.broker.ack([d.ack_token for d in again]) == [True, True]
    assert small.broker.store.consumers.state.as_dict()["untried"] == []


def test_a_send_back_counts_the_attempts_alone(small):
    small.broker.receiver.set_group("g", attempts_max=2, backoff="1s 5s")
    small.send("t")
    for _ in range(3):
        assert _give_back(small, _take(small))
    (sent,) = small.broker.send_back([_take(small).ack_token])
    assert sent.answer is SendBackAnswer.AGAIN
    assert sent.deliver_at_ms == small.clock.now_ms() + 1_000
    small.advance(1_000)
    assert _give_back(small, _take(small))
    delivery = _take(small)
    assert delivery.attempt == 2
    (sent,) = small.broker.send_back([delivery.ack_token])
    assert sent.answer is SendBackAnswer.DEAD


def test_order_is_kept(small):
    small.broker.receiver.set_group("g", is_fifo=True)
    for body in (b"1", b"2"):
        small.send("t", body, message_group="m")
    (first, second) = small.broker.receive("t", "g")
    small.broker.change_invisibility([first.ack_token, second.ack_token], 0, is_untried=True)
    assert [(d.message.body, d.attempt) for d in small.broker.receive("t", "g")] == [(b"1", 1), (b"2", 1)]


def test_receipts_and_checkpoints_of_before_are_read(small):
    small.send("t")
    delivery = _take(small)
    text = base64.urlsafe_b64decode(delivery.ack_token + "==").decode()
    assert text.startswith("r2\n")  # where nothing was untried, what an earlier version can read too
    state = small.broker.store.consumers.state.as_dict()
    del state["untried"]
    assert ConsumerState.from_dict(state).as_dict() == {**state, "untried": []}
    assert small.broker.ack([delivery.ack_token]) == [True]
