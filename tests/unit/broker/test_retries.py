"""Send-back by level: only its group sees it again, attempts survive, the last one is a dead letter."""

from __future__ import annotations

import pytest

from helpers.small_broker import START_MS
from tidemill.broker.consume.retries import SendBackAnswer
from tidemill.core.errors import RequestError, UnknownTopicError
from tidemill.core.model import CancelAnswer, Draft, TopicType

AGAIN, DEAD, INVALID = SendBackAnswer.AGAIN, SendBackAnswer.DEAD, SendBackAnswer.INVALID


def _take(small, topic="t", group="g", **fields):
    return small.broker.receive(topic, group, **fields)


def _one(small, topic="t", group="g"):
    (delivery,) = _take(small, topic, group, count=1)
    return delivery


def test_a_message_sent_back_comes_again_after_its_level_to_its_group_alone(small):
    small.send("t", b"work")
    mine, theirs = _one(small, group="g"), _one(small, group="h")
    small.broker.ack([theirs.ack_token])
    (sent,) = small.broker.send_back([mine.ack_token])
    assert (sent.answer, sent.deliver_at_ms) == (AGAIN, START_MS + 10_000)
    small.advance(9_999)
    assert _take(small) == []
    small.advance(1)
    assert _take(small, group="h") == []
    again = _one(small)
    assert (again.topic, again.attempt, again.message.body) == ("t", 2, b"work")
    assert again.message.id == mine.message.id
    assert again.message.properties["RETRY_TOPIC"] == "t"
    small.broker.ack([again.ack_token])
    small.advance(100_000)
    assert _take(small) == []


def test_the_receipt_of_what_was_sent_back_is_spent(small):
    small.send("t")
    delivery = _one(small)
    assert [s.answer for s in small.broker.send_back([delivery.ack_token, delivery.ack_token])] == [
        AGAIN,
        INVALID,
    ]
    assert small.broker.ack([delivery.ack_token]) == [False]
    assert small.broker.change_invisibility([delivery.ack_token], 0) == [False]
    assert [s.answer for s in small.broker.send_back([delivery.ack_token], -1)] == [INVALID]
    assert small.broker.dead_letter([delivery.ack_token])[0] is False
    small.advance(100_000)
    assert _one(small).attempt == 2


def test_levels_rise_with_the_attempts_and_a_chosen_level_wins(small):
    small.send("t")
    waits = []
    for level in (0, 0, 0, 1, 1_000):
        before_ms = small.clock.now_ms()
        (sent,) = small.broker.send_back([_one(small).ack_token], level)
        waits.append(sent.deliver_at_ms - before_ms)
        small.advance(waits[-1])
    assert waits == [10_000, 30_000, 60_000, 1_000, 7_200_000]
    assert sent.note == "level 1000 is above the highest, 18 was used"


def test_a_group_may_have_a_back_off_table_of_its_own(small):
    small.broker.receiver.set_group("g", backoff="2s 7s")
    small.send("t")
    waits = []
    for _ in range(3):
        before_ms = small.clock.now_ms()
        (sent,) = small.broker.send_back([_one(small).ack_token])
        waits.append(sent.deliver_at_ms - before_ms)
        small.advance(waits[-1])
    assert waits == [2_000, 7_000, 7_000]
    small.reopen()
    assert small.broker.store.consumers.state.group("g").backoff == "2s 7s"
    with pytest.raises(RequestError, match="whole number"):
        small.broker.receiver.set_group("g", backoff="2 seconds")


def test_after_the_last_attempt_it_is_a_dead_letter_and_minus_one_makes_it_one_at_once(small):
    small.broker.receiver.set_group("g", attempts_max=2)
    small.send("t", b"poison", keys=("k",))
    small.broker.send_back([_one(small).ack_token])
    small.advance(10_000)
    last = _one(small)
    assert last.attempt == 2
    assert [s.answer for s in small.broker.send_back([last.ack_token])] == [DEAD]
    small.send("t", b"hopeless")
    assert [s.answer for s in small.broker.send_back([_one(small).ack_token], -1)] == [DEAD]
    letters = small.broker.dead_letters.waiting("g")
    assert [(letter.topic, letter.message.body, letter.attempts) for letter in letters] == [
        ("t", b"poison", 2),
        ("t", b"hopeless", 1),
    ]
    assert small.broker.dead_letters.groups() == ["g"]


def test_attempts_of_leases_and_of_send_backs_count_together_also_over_crashes(small):
    small.broker.receiver.set_group("g", attempts_max=4)
    small.send("t", b"x")
    assert _one(small).attempt == 1
    small.advance(30_000)  # the lease ends
    small.kill_and_open(power_cut=True)
    second = _one(small)
    assert second.attempt == 2
    small.broker.send_back([second.ack_token])
    small.kill_and_open(power_cut=True)
    small.advance(60_000)
    assert _one(small).attempt == 3
    small.kill_and_open()
    small.advance(30_000)
    fourth = _one(small)
    assert fourth.attempt == 4
    small.advance(30_000)
    assert _take(small) == []
    (letter,) = small.broker.dead_letters.waiting("g")
    assert (letter.topic, letter.message.body, letter.attempts) == ("t", b"x", 4)


def test_a_send_back_is_pending_forecast_and_can_be_cancelled_and_moved(small):
    small.broker.send([Draft("t", b"a"), Draft("t", b"b")])
    sent = small.broker.send_back([d.ack_token for d in _take(small)], 5)
    waiting = small.broker.views.pending()
    assert [(p.topic, p.deliver_at_ms) for p in waiting] == [("%RETRY%g", START_MS + 60_000)] * 2
    assert sum(count for _, count in small.broker.views.forecast(horizon_ms=120_000)) == 2
    assert {v.level: v.waiting for v in small.broker.status().levels if v.waiting} == {5: 2}
    assert small.broker.cancel([sent[0].handle]) == [CancelAnswer.CANCELLED]
    (moved,) = small.broker.reschedule([sent[1].handle], by_ms=1_000)
    small.advance(60_000)
    assert _take(small) == []
    small.advance(1_000)
    assert _one(small).attempt == 2
    assert moved.deliver_at_ms == START_MS + 61_000


def test_retries_of_two_topics_and_two_groups_are_kept_apart(small):
    for topic in ("a", "b"):
        small.send(topic, topic.encode())
    for group in ("g", "h"):
        for topic in ("a", "b"):
            small.broker.send_back([_one(small, topic, group).ack_token])
    small.advance(10_000)
    for group in ("g", "h"):
        for topic in ("b", "a"):
            again = _one(small, topic, group)
            assert (again.message.body, again.topic, again.attempt) == (topic.encode(), topic, 2)
            small.broker.ack([again.ack_token])
    with pytest.raises(RequestError, match="another group"):
        _take(small, "%RETRY%g", "h")
    assert small.broker.topics.require("%RETRY%g").queue_count == 2


def test_a_group_that_begins_at_the_end_still_gets_what_it_sent_back(small):
    small.broker.receiver.set_group("g", starts_first=False)
    small.send("t", b"before")
    assert _take(small) == []
    small.send("t", b"after")
    small.broker.send_back([_one(small).ack_token])
    small.advance(10_000)
    assert _one(small).message.body == b"after"


def test_fifo_retries_in_place_and_holds_its_group(small):
    small.broker.topics.create("f", TopicType.FIFO, 1)
    small.broker.receiver.set_group("g", is_fifo=True)
    for body in (b"1", b"2"):
        small.send("f", body, message_group="m")
    first = _one(small, "f")
    (sent,) = small.broker.send_back([first.ack_token], 2)
    assert (sent.answer, sent.handle, sent.deliver_at_ms) == (AGAIN, None, START_MS + 5_000)
    small.advance(4_999)
    assert _take(small, "f") == []
    small.advance(1)
    again = _one(small, "f")
    assert (again.message.body, again.attempt) == (b"1", 2)
    small.broker.ack([again.ack_token])
    assert _one(small, "f").message.body == b"2"


def test_a_plain_group_sends_back_from_a_fifo_topic_as_from_any_other(small):
    small.broker.topics.create("f", TopicType.FIFO, 1)
    for body in (b"1", b"2"):
        small.send("f", body, message_group="m")
    first = _one(small, "f")
    (sent,) = small.broker.send_back([first.ack_token], 2)
    assert sent.handle is not None and sent.handle.topic == "%RETRY%g"
    assert _one(small, "f").message.body == b"2"
    small.advance(5_000)
    again = _one(small, "f")
    assert (again.message.body, again.message.message_group, again.attempt) == (b"1", "m", 2)


def test_bad_send_backs_are_refused(small):
    small.send("t")
    delivery = _one(small)
    for level in (-2, 1.5, "3", None):
        with pytest.raises(RequestError, match="level"):
            small.broker.send_back([delivery.ack_token], level)
    with pytest.raises(RequestError, match="not an ack token"):
        small.broker.send_back(["nonsense"])


def test_dead_letters_are_resent_to_their_group_alone_with_all_attempts(small):
    small.broker.receiver.set_group("g", attempts_max=1)
    for body in (b"1", b"2", b"3"):
        small.send("t", body)
    _take(small, group="h")
    small.broker.send_back([d.ack_token for d in _take(small)])
    letters = small.broker.dead_letters.waiting("g")
    assert sorted(letter.message.body for letter in letters) == [b"1", b"2", b"3"]
    chosen = next(letter for letter in letters if letter.message.body == b"3")
    assert small.broker.dead_letters.resend("g", [chosen.message.id]) == 1
    again = _one(small)
    assert (again.message.body, again.attempt, again.topic) == (b"3", 1, "t")
    assert "DLQ_ORIGIN_TOPIC" not in again.message.properties
    small.broker.ack([again.ack_token])
    small.kill_and_open(power_cut=True)
    assert sorted(one.message.body for one in small.broker.dead_letters.waiting("g")) == [b"1", b"2"]
    assert small.broker.dead_letters.resend("g") == 2
    assert small.broker.dead_letters.waiting("g") == []
    assert small.broker.dead_letters.resend("g") == 0
    small.broker.ack([d.ack_token for d in _take(small)])
    small.advance(100_000)
    assert _take(small, group="h", count=10) != []  # its own leases, nothing more
    assert len(_take(small, group="h", count=10)) == 0


def test_a_later_dead_letter_of_a_queue_is_resent_before_an_earlier_one(make_small):
    small = make_small(queues_per_topic=1)
    for body in (b"1", b"2"):
        small.send("t", body)
    small.broker.send_back([d.ack_token for d in _take(small)], -1)
    first, second = small.broker.dead_letters.waiting("g")
    assert small.broker.dead_letters.resend("g", [second.message.id]) == 1
    assert _one(small).message.body == b"2"
    assert small.broker.dead_letters.waiting("g") == [first]


def test_a_letter_whose_topic_is_gone_stays(small):
    for topic in ("t", "u"):
        small.send(topic, topic.encode())
        small.broker.send_back([_one(small, topic).ack_token], -1)
    small.broker.topics.delete("t")
    assert small.broker.dead_letters.resend("g") == 1
    (left,) = small.broker.dead_letters.waiting("g")
    assert left.topic == "t"
    with pytest.raises(UnknownTopicError, match="deleted: t"):
        small.broker.dead_letters.resend("g", [left.message.id])


def test_a_crash_in_the_middle_of_a_send_back_leaves_the_message_in_one_place(make_small):
    for power_cut in (False, True):
        small = make_small()
        small.send("t", b"x")
        delivery = _one(small)
        small.broker.topics.retry_queue("g", small.broker.topics.require("t"))
        store = small.broker.store
        finish = store.finish_written
        store.finish_written = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            small.broker.send_back([delivery.ack_token])
        store.finish_written = finish
        small.kill_and_open(power_cut=power_cut)
        small.advance(40_000)
        assert _one(small).attempt == 2
        assert _take(small) == []
