"""Receiving: invisibility, attempts, dead letters, tags, order, where a group begins."""

from __future__ import annotations

import base64
import weakref
from dataclasses import astuple

import pytest

from helpers.small_broker import START_MS
from tidemill.core.limits import ANSWER_BYTES_MAX, BODY_BYTES_MAX, MIB
from tidemill.core.model import Draft, StoredMessage, TopicType, Via


def _bodies(deliveries):
    return [d.message.body for d in deliveries]


def test_a_message_is_handed_out_once_and_again_when_its_lease_ends(small):
    small.send("work", b"a")
    (first,) = small.broker.receive("work", "g", invisible_ms=1_000)
    assert (first.attempt, first.invisible_until_ms, first.via) == (1, START_MS + 1_000, Via.DIRECT)
    assert small.broker.receive("work", "g") == []
    small.clock.advance(999)
    assert small.broker.receive("work", "g") == []
    small.clock.advance(1)
    (second,) = small.broker.receive("work", "g")
    assert (second.attempt, second.message.body) == (2, b"a")


def test_what_is_acknowledged_never_comes_back(small):
    small.broker.send([Draft("work", b"%d" % i) for i in range(4)])
    taken = small.broker.receive("work", "g", invisible_ms=1_000)
    assert small.broker.ack([d.ack_token for d in taken[:3]]) == [True] * 3
    assert small.broker.ack([taken[0].ack_token]) == [False]
    small.clock.advance(5_000)
    assert _bodies(small.broker.receive("work", "g")) == [taken[3].message.body]


def test_a_receipt_settles_only_the_attempt_it_was_given_for(small):
    small.send("work", b"a")
    (first,) = small.broker.receive("work", "g", invisible_ms=10)
    small.clock.advance(10)
    (second,) = small.broker.receive("work", "g", invisible_ms=10)
    assert small.broker.ack([first.ack_token]) == [False]
    assert small.broker.change_invisibility([first.ack_token], 5) == [False]
    assert small.broker.ack([second.ack_token]) == [True]


def test_invisibility_can_be_cut_short_and_prolonged(small):
    small.broker.send([Draft("work", b"short"), Draft("work", b"long")])
    by_body = {d.message.body: d for d in small.broker.receive("work", "g", invisible_ms=1_000)}
    small.broker.change_invisibility([by_body[b"short"].ack_token], 0)
    small.broker.change_invisibility([by_body[b"long"].ack_token], 9_000)
    assert _bodies(small.broker.receive("work", "g")) == [b"short"]
    small.clock.advance(8_999)
    assert small.broker.receive("work", "g") == []
    small.clock.advance(1)
    assert _bodies(small.broker.receive("work", "g")) == [b"long"]


@pytest.mark.parametrize("order", [(0, 3, 2), (2, 0, 3), (3, 2, 0), (1, 2, 0), (0, 1, 2)])
def test_leases_that_end_in_any_order_bring_each_its_own_message(small, order):
    small.broker.topics.create("work", queue_count=1)
    small.broker.send([Draft("work", b"%d" % i) for i in range(4)])
    taken = small.broker.receive("work", "g", invisible_ms=60_000)
    for turn, offset in enumerate(order):
        small.broker.change_invisibility([taken[offset].ack_token], 100 * (turn + 1))
    small.clock.advance(1_000)
    again = small.broker.receive("work", "g")
    assert [(d.offset, d.message.body) for d in again] == [(offset, b"%d" % offset) for offset in order]


def test_large_messages_come_in_smaller_numbers_and_none_is_left_out(small):
    bodies = [bytes([65 + number]) * (3 * MIB) for number in range(12)]
    for body in bodies:
        small.send("work", body)
    answers = []
    while found := small.broker.receive("work", "g"):
        answers.append(_bodies(found))
    assert all(sum(map(len, answer)) < ANSWER_BYTES_MAX + 3 * MIB for answer in answers)
    assert sorted(body for answer in answers for body in answer) == bodies
    assert len(answers) < len(bodies)


@pytest.mark.parametrize("queues", [1, 3])
@pytest.mark.parametrize("message_group", ["", "ordered"])
def test_one_of_the_largest_comes_alone_and_delays_no_other(small, queues, message_group):
    small.broker.topics.create("work", queue_count=queues)
    small.broker.receiver.set_group("g", is_fifo=bool(message_group), attempts_max=3)
    large = b"L" * BODY_BYTES_MAX
    for body in (b"", b"1", large, b"2", large, b"3"):
        small.send("work", body, message_group=message_group)
    delivered: list[bytes] = []
    for _ in range(20):  # who cannot take a large one gives it back each time
        found = small.broker.receive("work", "g")
        assert [large] == _bodies(found) or large not in _bodies(found)
        if large in _bodies(found):
            small.broker.change_invisibility([found[0].ack_token], 1_000 if not message_group else 0)
            continue
        delivered += _bodies(found)
        small.broker.ack([d.ack_token for d in found])
        small.clock.advance(1_000)
    assert sorted(delivered) == [b"", b"1", b"2", b"3"]
    assert delivered == [b"", b"1", b"2", b"3"] or queues > 1 or not message_group
    letters = small.broker.receive("%DLQ%g", "burial")
    assert _bodies(letters) == [large]


def test_looking_is_bounded_by_bytes_too(small):
    small.broker.topics.create("work", queue_count=1)
    for number in range(12):
        small.send("work", bytes([65 + number]) * (3 * MIB), keys=("k",))
    views = small.broker.views
    assert len(views.read("work", 0, 0, 100)) == len(views.find("work", "k")) == 12
    first = views.read("work", 0, 0, 100, bytes_max=ANSWER_BYTES_MAX)
    assert [row.offset for row in first] == [0, 1, 2, 3, 4, 5]
    rest = views.read("work", 0, 6, 100, bytes_max=ANSWER_BYTES_MAX)
    assert [row.offset for row in rest] == [6, 7, 8, 9, 10, 11]
    assert len(views.find("work", "k", bytes_max=ANSWER_BYTES_MAX)) == 6


class _Watched(StoredMessage):
    """A message that can be seen to go."""


@pytest.mark.parametrize("delay_ms", [None, 60_000])
def test_finding_holds_no_more_bodies_than_it_shows(small, monkeypatch, delay_ms):
    """A key may have been used for years: what is beyond the answer is let go as soon as it is looked at."""
    for number in range(12):
        small.send("work", bytes([65 + number]) * 1000, keys=("k",), delay_ms=delay_ms)
    held: list[weakref.ref[StoredMessage]] = []
    read, most = small.broker.store.message, 0

    def counted(place: int) -> StoredMessage:
        nonlocal most
        message = _Watched(*astuple(read(place)))
        held.append(weakref.ref(message))
        most = max(most, sum(one() is not None for one in held))
        return message

    monkeypatch.setattr(small.broker.store, "message", counted)
    found = small.broker.views.find("work", "k", bytes_max=2500)
    assert [one.message.body[:1] for one in found] == [b"L", b"K", b"J"]
    assert most <= 4


def test_groups_read_a_topic_each_for_itself(small):
    small.send("work", b"a")
    assert _bodies(small.broker.receive("work", "g1")) == [b"a"]
    assert _bodies(small.broker.receive("work", "g2")) == [b"a"]


@pytest.mark.parametrize("how", ["kill", "power cut", "checkpoint", "close"])
def test_leases_and_attempts_survive(small, how):
    small.broker.send([Draft("work", b"%d" % i) for i in range(6)])
    taken = small.broker.receive("work", "g", invisible_ms=1_000, count=4)
    small.broker.ack([taken[0].ack_token])
    small.broker.change_invisibility([taken[1].ack_token], 7_000)
    if how == "checkpoint":
        small.broker.store.checkpoint()
        small.broker.ack([taken[2].ack_token])
    small.reopen() if how == "close" else small.kill_and_open(power_cut=how == "power cut")
    assert small.broker.ack([taken[3].ack_token]) == [True]
    left = {d.message.body: d.attempt for d in small.broker.receive("work", "g")}
    untaken = {b"%d" % i for i in range(6)} - set(_bodies(taken))
    assert left == dict.fromkeys(untaken, 1)
    small.clock.advance(7_000)
    again = {d.message.body: d.attempt for d in small.broker.receive("work", "g", count=9)}
    expected = {taken[1].message.body: 2, taken[2].message.body: 2}
    if how == "checkpoint":
        del expected[taken[2].message.body]
    assert again == expected


def test_a_message_that_used_up_its_attempts_goes_to_the_dead_letters_once(small):
    small.broker.receiver.set_group("g", attempts_max=2)
    small.send("work", b"bad", tag="t", keys=("k",), id="bad-1")
    for _ in range(2):
        assert len(small.broker.receive("work", "g", invisible_ms=10)) == 1
        small.clock.advance(10)
    assert small.broker.receive("work", "g") == []
    for _ in range(2):
        (letter,) = small.broker.views.read("%DLQ%g", 0, 0, 9) + small.broker.views.read("%DLQ%g", 1, 0, 9)
        assert (letter.message.body, letter.message.tag, letter.message.keys) == (b"bad", "t", ("k",))
        assert letter.message.properties["DLQ_ORIGIN_TOPIC"] == "work"
        assert letter.message.properties["DLQ_ORIGIN_MESSAGE_ID"] == "bad-1"
        small.kill_and_open()
        small.clock.advance(100_000)
        assert small.broker.receive("work", "g") == []
    assert _bodies(small.broker.receive("%DLQ%g", "undertaker")) == [b"bad"]


def test_a_dead_letter_made_just_before_a_checkpoint_is_settled_for_good(small):
    small.broker.receiver.set_group("g", attempts_max=1)
    small.broker.send([Draft("work", b"%d" % i) for i in range(3)])
    small.broker.receive("work", "g", invisible_ms=10)
    small.clock.advance(10)
    small.broker.receive("work", "g")
    small.broker.store.checkpoint()
    small.broker.receiver.reset("other", "work", 0)
    small.kill_and_open()
    small.clock.advance(100_000)
    assert small.broker.receive("work", "g") == []
    assert len(small.in_topic("%DLQ%g")) == 3


def test_unwanted_tags_are_stepped_over_for_good(small):
    small.broker.send([Draft("work", b"%d" % i, tag="even" if i % 2 == 0 else "odd") for i in range(8)])
    taken = small.broker.receive("work", "g", accepts_tag=lambda tag: tag == "even")
    assert sorted(_bodies(taken)) == [b"0", b"2", b"4", b"6"]
    small.broker.ack([d.ack_token for d in taken])
    small.kill_and_open()
    assert small.broker.receive("work", "g") == []


def test_a_count_is_a_bound_over_all_queues(small):
    small.broker.send([Draft("work", b"%d" % i) for i in range(10)])
    sizes = [len(small.broker.receive("work", "g", count=4)) for _ in range(4)]
    assert sizes == [4, 4, 2, 0]


# -- order ----------------------------------------------------------------------------------------


def _fifo(small, bodies, group="a"):
    if small.broker.store.topics.named("line") is None:
        small.broker.topics.create("line", TopicType.FIFO, 1)
        small.broker.receiver.set_group("g", is_fifo=True)
    small.broker.send([Draft("line", body, message_group=group) for body in bodies])


def test_a_message_of_a_group_waits_while_an_earlier_one_is_out(small):
    _fifo(small, [b"1", b"2", b"3"])
    (first,) = small.broker.receive("line", "g", count=1, invisible_ms=1_000)
    assert first.message.body == b"1"
    assert small.broker.receive("line", "g") == []
    small.broker.ack([first.ack_token])
    assert _bodies(small.broker.receive("line", "g", count=2)) == [b"2", b"3"]


def test_a_message_whose_lease_ends_comes_before_later_ones(small):
    _fifo(small, [b"1", b"2", b"3"])
    small.broker.receive("line", "g", count=1, invisible_ms=1_000)
    small.clock.advance(1_000)
    assert _bodies(small.broker.receive("line", "g", count=3)) == [b"1", b"2", b"3"]


def test_the_earlier_one_comes_first_though_its_lease_ended_later(small):
    _fifo(small, [b"1", b"2", b"3"])
    taken = small.broker.receive("line", "g", count=2, invisible_ms=1_000)
    small.broker.change_invisibility([taken[1].ack_token], 10)
    small.clock.advance(500)
    assert small.broker.receive("line", "g") == []
    small.clock.advance(500)
    assert _bodies(small.broker.receive("line", "g", count=1)) == [b"1"]


def test_another_group_that_came_before_does_not_wait(small):
    _fifo(small, [b"a1"], "a")
    _fifo(small, [b"b1", b"b2"], "b")
    (first,) = small.broker.receive("line", "g", count=1, invisible_ms=1_000)
    assert _bodies([first, *small.broker.receive("line", "g")]) == [b"a1", b"b1", b"b2"]


def test_a_plain_group_on_a_fifo_topic_does_not_wait_for_an_unacknowledged_message(small):
    _fifo(small, [b"1", b"2", b"3"])
    taken = small.broker.receive("line", "plain", count=1, invisible_ms=1_000)
    assert _bodies(taken) == [b"1"]
    assert _bodies(small.broker.receive("line", "plain", one_per_message_group=True)) == [b"2", b"3"]
    assert _bodies(small.broker.receive("line", "g", count=1)) == [b"1"]
    assert small.broker.receive("line", "g") == []


def test_what_is_put_off_delays_nothing_in_a_plain_group_on_a_fifo_topic(small):
    _fifo(small, [b"1", b"2"])
    first, second = small.broker.receive("line", "plain", invisible_ms=1_000)
    small.broker.change_invisibility([first.ack_token], 60_000)
    small.broker.change_invisibility([second.ack_token], 10)
    assert small.broker.receiver.next_visible_ms("line", "plain") == small.clock.now_ms() + 10
    small.clock.advance(10)
    assert _bodies(small.broker.receive("line", "plain")) == [b"2"]


def test_a_fifo_group_keeps_the_order_of_any_topic(small):
    small.broker.topics.create("plain", TopicType.MIXED, 1)
    small.broker.receiver.set_group("g", is_fifo=True)
    small.broker.send([Draft("plain", b"1"), Draft("plain", b"2")])
    small.broker.receive("plain", "g", count=1, invisible_ms=1_000)
    assert small.broker.receive("plain", "g") == []


def test_who_works_on_several_at_once_may_have_one_of_each_message_group(small):
    for number in (1, 2):
        for group in "ab":
            _fifo(small, [f"{group}{number}".encode()], group)
    first, second = small.broker.receive("line", "g", one_per_message_group=True, invisible_ms=1_000)
    assert _bodies([first, second]) == [b"a1", b"b1"]
    small.broker.ack([second.ack_token])
    assert small.broker.receive("line", "g", one_per_message_group=True) == []  # a2 is in front of b2
    small.broker.change_invisibility([first.ack_token], 10)
    small.clock.advance(10)
    assert _bodies(small.broker.receive("line", "g", one_per_message_group=True)) == [b"a1"]


def test_without_order_one_per_message_group_keeps_nothing_back(small):
    small.broker.send([Draft("work", b"1", message_group="a"), Draft("work", b"2", message_group="a")])
    assert len(small.broker.receive("work", "g", one_per_message_group=True)) == 2


def test_what_waits_behind_one_that_is_out_is_waited_for_by_that_ones_lease(small):
    _fifo(small, [b"1", b"2"])
    small.broker.receive("line", "g", count=2, invisible_ms=1_000)
    small.clock.advance(1_000)
    small.broker.receive("line", "g", count=1, invisible_ms=5_000)
    assert small.broker.receiver.next_visible_ms("line", "g") == small.clock.now_ms() + 5_000
    assert small.broker.receive("line", "g") == []


def test_a_lease_cut_short_and_a_place_in_line_are_announced_to_their_group(small):
    notifier = small.broker.store.notifier
    notifier.listener = lambda: None
    _fifo(small, [b"1", b"2"])
    small.send("work", b"x")
    (first,) = small.broker.receive("line", "g", count=1, invisible_ms=1_000)
    (other,) = small.broker.receive("work", "plain", invisible_ms=1_000)
    small.broker.change_invisibility([first.ack_token, other.ack_token], 2_000)
    assert notifier.take_freed() == set()  # neither is available any sooner
    small.broker.change_invisibility([first.ack_token, other.ack_token], 10)
    assert notifier.take_freed() == {("line", "g"), ("work", "plain")}
    small.broker.ack([first.ack_token, other.ack_token])
    assert notifier.take_freed() == {("line", "g")}
    notifier.listener = None


# -- where a group begins -------------------------------------------------------------------------


def test_a_new_group_begins_at_the_oldest_message_or_at_the_end(small):
    small.broker.receiver.set_group("late", starts_first=False)
    small.send("work", b"old")
    assert small.broker.receive("work", "late") == []
    assert _bodies(small.broker.receive("work", "early")) == [b"old"]
    small.broker.send([Draft("work", b"new"), Draft("work", b"new")])
    assert _bodies(small.broker.receive("work", "late")) == [b"new", b"new"]


def test_a_group_can_read_again_from_a_time_and_skip_to_one(small):
    for i in range(10):
        small.send("work", b"%d" % i)
        small.clock.advance(100)
    taken = small.broker.receive("work", "g")
    small.broker.ack([d.ack_token for d in taken])
    small.broker.receiver.reset("g", "work", START_MS + 700)
    small.kill_and_open()
    assert sorted(_bodies(small.broker.receive("work", "g"))) == [b"7", b"8", b"9"]
    small.broker.receiver.reset("g", "work", small.clock.now_ms())
    assert small.broker.receive("work", "g") == []
    assert small.broker.ack([taken[0].ack_token]) == [False]


@pytest.mark.parametrize("crash", ["none", "kill", "kill after a checkpoint", "close"])
def test_a_receipt_from_before_a_reset_settles_nothing_after_it(small, crash):
    small.send("work", b"a")
    (old,) = small.broker.receive("work", "g")
    small.broker.receiver.reset("g", "work", 0)
    (new,) = small.broker.receive("work", "g")
    assert (old.offset, old.attempt) == (new.offset, new.attempt)
    if crash == "kill after a checkpoint":
        small.broker.store.checkpoint()
    if crash == "close":
        small.reopen()
    elif crash != "none":
        small.kill_and_open()
    assert small.broker.ack([old.ack_token]) == [False]
    assert small.broker.change_invisibility([old.ack_token], 5) == [False]
    assert not small.broker.dead_letter([old.ack_token])[0]
    assert small.broker.ack([new.ack_token]) == [True]


def test_a_receipt_of_an_earlier_version_still_settles_its_delivery(small):
    small.send("work", b"a")
    (delivery,) = small.broker.receive("work", "g")
    text = f"r1\ng\nwork\n{delivery.queue_id}\n{delivery.offset}\n1"
    assert small.broker.ack([base64.urlsafe_b64encode(text.encode()).decode()]) == [True]


def test_a_receipt_of_a_group_or_topic_that_is_not_there_is_not_valid(small):
    small.send("work", b"a")
    (delivery,) = small.broker.receive("work", "g")
    small.broker.topics.delete("work", is_forced=True)
    assert small.broker.ack([delivery.ack_token]) == [False]


def test_a_timed_message_says_how_it_came(small):
    small.send("work", b"near", delay_ms=1_000)
    small.send("work", b"far", delay_ms=100_000)
    small.advance(100_000)
    via = {d.message.body: (d.via, d.released_at_ms - START_MS) for d in small.broker.receive("work", "g")}
    assert via == {b"near": (Via.NEAR, 1_000), b"far": (Via.EMBEDDED, 100_000)}


def test_the_lag_of_a_group_is_what_it_was_not_given_yet(small):
    small.broker.send([Draft("work", b"%d" % i) for i in range(9)])
    small.broker.receive("work", "g", count=4)
    (view,) = small.broker.views.groups()
    assert (sum(view.lag.values()), view.unsettled) == (5, {"work": 4})
