"""Sending: receipts, de-duplication, once and replace by key."""

from __future__ import annotations

import pyarrow as pa
import pytest

from helpers.small_broker import START_MS
from tidemill.core.errors import RequestError, UnknownTopicError, WrongMessageTypeError
from tidemill.core.model import Draft, Once, SendResult, TopicType

HOUR_MS = 3_600_000


def test_a_timed_message_waits_and_then_is_in_its_topic_at_its_millisecond(small):
    receipt = small.send("orders", b"close", delay_ms=1_234)
    assert receipt.deliver_at_ms == START_MS + 1_234
    small.advance(1_233)
    assert small.bodies("orders") == []
    small.advance(1)
    assert [m.released_at_ms for m in small.in_topic("orders")] == [START_MS + 1_234]


def test_a_message_without_a_time_is_in_its_topic_at_once(small):
    receipt = small.send("orders", b"now")
    assert receipt.handle is None
    assert receipt.deliver_at_ms is None
    assert small.bodies("orders") == [b"now"]


@pytest.mark.parametrize("fields", [{"delay_ms": 0}, {"deliver_at_ms": 0}, {"deliver_at_ms": -7}])
def test_a_time_that_has_passed_is_due_now(small, fields):
    small.send("orders", b"late", **fields)
    small.advance(1)
    assert small.bodies("orders") == [b"late"]


def test_everything_given_with_a_message_comes_out_again(small):
    small.send(
        "orders",
        b"\x00\xff body",
        delay_ms=5,
        id="my-id",
        keys=("k1", "k2"),
        tag="tag",
        properties={"a": "b", "ключ": "значение"},
        born_at_ms=7,
    )
    small.advance(5)
    (delivery,) = small.broker.receive("orders", "g")
    message = delivery.message
    assert (message.body, message.id, message.keys, message.tag) == (
        b"\x00\xff body",
        "my-id",
        ("k1", "k2"),
        "tag",
    )
    assert dict(message.properties) == {"a": "b", "ключ": "значение"}
    assert (message.born_at_ms, message.stored_at_ms, message.deliver_at_ms) == (7, START_MS, START_MS + 5)


def test_ids_made_by_the_broker_are_all_different(small):
    ids = [r.id for _ in range(20) for r in small.broker.send([Draft("a", b""), Draft("b", b"", delay_ms=9)])]
    small.kill_and_open()
    ids += [r.id for _ in range(20) for r in small.broker.send([Draft("a", b""), Draft("new", b"")])]
    assert len(set(ids)) == 80


# -- the same id again ----------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"delay_ms": 5_000}, {"delay_ms": 5 * HOUR_MS}])
def test_the_same_id_within_an_hour_gets_the_first_receipt_and_no_second_message(small, fields):
    first = small.send("orders", b"one", id="x", **fields)
    end = small.log_end
    small.clock.advance(HOUR_MS - 1)
    again = small.send("orders", b"one", id="x", **fields)
    assert (again.id, again.handle, again.deliver_at_ms) == (first.id, first.handle, first.deliver_at_ms)
    assert (first.is_repeat, again.is_repeat) == (False, True)
    assert (again.queue, again.offset) == (first.queue, first.offset)
    assert small.log_end == end


def test_the_receipt_says_where_a_message_is_that_went_into_its_queue_at_once(small):
    for number in range(5):
        small.send("orders", id=f"m{number}")
    small.broker.send_table(pa.table({"id": ["b0", "b1"], "body": [b"", b""]}), topic="orders")
    small.broker.transactions.begin([Draft("orders", b"", id="committed")])
    commits = [small.broker.transactions.commit("orders", "committed") for _ in range(2)]
    small.kill_and_open()
    stored = small.in_topic("orders")
    placed = {(m.id, m.queue_id, m.offset) for m in stored}
    assert {(r.id, r.queue, r.offset) for r in commits} < placed
    again = [small.send("orders", m.body, id=m.id) for m in stored]
    assert len(placed) == 8
    assert {(r.id, r.queue, r.offset) for r in again} == placed
    assert all(receipt.is_repeat for receipt in again)


def test_a_message_that_waits_has_no_place_in_a_queue_nor_has_a_repeat_of_it(small):
    fields = {"id": "x", "keys": ("k",), "delay_ms": 5_000}
    first, again = small.send("orders", **fields), small.send("orders", **fields)
    once = small.send("orders", keys=("k",), once=Once.KEEP, delay_ms=9_000)
    small.advance(5_000)
    # A repeat is answered as the first send was, though the message has gone into its queue since.
    after = small.send("orders", **fields)
    assert [r.is_repeat for r in (first, again, once, after)] == [False, True, True, True]
    assert {(r.queue, r.offset) for r in (first, again, once, after)} == {(None, None)}


@pytest.mark.parametrize("fields", [{}, {"delay_ms": 5_000}])
def test_the_same_id_after_an_hour_is_a_new_message(small, fields):
    small.send("orders", b"one", id="x", **fields)
    small.advance(HOUR_MS)
    again = small.send("orders", b"two", id="x", **fields)
    assert not again.is_repeat
    small.advance(5_000)
    assert sorted(small.bodies("orders")) == [b"one", b"two"]


def test_the_same_id_in_another_topic_is_another_message(small):
    small.send("a", id="x")
    assert not small.send("b", id="x").is_repeat


def test_the_same_id_after_a_restart_is_still_the_same_message(small):
    first = small.send("orders", b"one", id="x", delay_ms=90_000)
    untimed = small.send("orders", b"u", id="y")
    small.kill_and_open()
    again = small.broker.send([Draft("orders", b"one", id="x", delay_ms=1), Draft("orders", b"u", id="y")])
    assert [r.is_repeat for r in again] == [True, True]
    assert (again[0].handle, again[1].id) == (first.handle, untimed.id)


def test_the_same_id_twice_in_one_batch_is_one_message(small):
    drafts = [
        Draft("orders", b"0", delay_ms=7),
        Draft("orders", b"1", delay_ms=8, id="x"),
        Draft("orders", b"u", id="y"),
        Draft("orders", b"1", delay_ms=9, id="x"),
        Draft("orders", b"u", id="y"),
    ]
    receipts = small.broker.send(drafts)
    assert [r.is_repeat for r in receipts] == [False, False, False, True, True]
    assert receipts[3].handle == receipts[1].handle
    assert receipts[4].handle is None
    small.advance(10)
    assert sorted(small.bodies("orders")) == [b"0", b"1", b"u"]


def test_the_id_of_a_rescheduled_message_is_answered_with_where_it_is_now(small):
    first = small.send("orders", b"one", id="x", delay_ms=90_000)
    (moved,) = small.broker.reschedule([first.handle], by_ms=500)
    again = small.send("orders", b"one", id="x", delay_ms=90_000)
    assert (again.handle, again.deliver_at_ms, again.is_repeat) == (moved.handle, moved.deliver_at_ms, True)


# -- once by key ----------------------------------------------------------------------------------


def test_once_keeps_the_first_while_it_waits_and_not_after(small):
    first = small.send("orders", b"one", delay_ms=5_000, keys=("k",), once=Once.KEEP)
    again = small.send("orders", b"two", delay_ms=9_000, keys=("k",), once=Once.KEEP)
    assert (again.handle, again.deliver_at_ms, again.is_repeat) == (first.handle, first.deliver_at_ms, True)
    small.advance(5_000)
    assert not small.send("orders", b"three", delay_ms=1_000, keys=("k",), once=Once.KEEP).is_repeat
    small.advance(1_000)
    assert small.bodies("orders") == [b"one", b"three"]


def test_replace_pushes_the_due_time_of_the_first(small):
    first = small.send("orders", b"one", delay_ms=5_000, keys=("k",), once=Once.REPLACE)
    again = small.send("orders", b"two", delay_ms=9_000, keys=("k",), once=Once.REPLACE)
    assert again.is_repeat
    assert again.handle.seq != first.handle.seq
    small.advance(8_999)
    assert small.bodies("orders") == []
    small.advance(1)
    assert small.bodies("orders") == [b"one"]


def test_a_key_is_sent_once_within_a_batch_too(small):
    drafts = [Draft("orders", b"%d" % i, delay_ms=1_000 + i, keys=("k",), once=Once.KEEP) for i in range(3)]
    receipts = small.broker.send(drafts)
    assert {r.handle for r in receipts} == {receipts[0].handle}
    assert [r.is_repeat for r in receipts] == [False, True, True]
    small.advance(2_000)
    assert small.bodies("orders") == [b"0"]


def test_the_last_replace_of_a_batch_says_when(small):
    drafts = [
        Draft("orders", b"%d" % i, delay_ms=40_000 - i, keys=("k",), once=Once.REPLACE) for i in range(3)
    ]
    receipts = small.broker.send(drafts)
    assert {r.deliver_at_ms for r in receipts} == {START_MS + 39_998}
    small.advance(39_998)
    assert [(m.body, m.released_at_ms) for m in small.in_topic("orders")] == [(b"0", START_MS + 39_998)]


def test_replacing_anywhere_in_a_batch_gives_every_message_its_own_handle(small):
    small.send("orders", b"old", delay_ms=50_000, keys=("old",))
    drafts = [
        Draft("orders", b"a", delay_ms=10, id="a"),
        Draft("orders", b"a", delay_ms=11, id="a"),
        Draft("orders", b"-", delay_ms=20, keys=("old",), once=Once.REPLACE),
        Draft("orders", b"b", delay_ms=30),
    ]
    receipts = small.broker.send(drafts)
    assert receipts[0].handle == receipts[1].handle
    assert len({r.handle.seq for r in receipts}) == 3
    due = {p.seq: p.deliver_at_ms for p in small.broker.views.pending()}
    assert [due[r.handle.seq] for r in receipts] == [r.deliver_at_ms for r in receipts]
    small.advance(30)
    assert small.bodies("orders") == [b"a", b"old", b"b"]


def test_an_untimed_message_with_the_key_does_not_count_as_waiting(small):
    receipts = small.broker.send(
        [Draft("orders", b"u", keys=("k",)), Draft("orders", b"t", keys=("k",), delay_ms=5, once=Once.KEEP)]
    )
    assert [r.is_repeat for r in receipts] == [False, False]
    small.advance(5)
    assert sorted(small.bodies("orders")) == [b"t", b"u"]


# -- all or none, each for itself -----------------------------------------------------------------


def test_one_wrong_draft_leaves_no_trace_of_the_others(small):
    small.broker.topics.create("fifo", TopicType.FIFO)
    waiting = small.send("orders", b"w", delay_ms=90_000, keys=("k",))
    end, before = small.log_end, small.state()
    right = [
        Draft("brand-new", b""),
        Draft("orders", b"", delay_ms=5, keys=("k",), once=Once.REPLACE),
    ]
    with pytest.raises(WrongMessageTypeError):
        small.broker.send([*right, Draft("fifo", b"no group")])
    with pytest.raises(UnknownTopicError):
        small.broker.send([*right[1:], Draft("missing", b"")], creates_topics=False)
    assert small.log_end == end
    assert small.state() == before
    assert small.broker.views.pending()[0].handle == waiting.handle


def test_send_each_stores_what_is_right_and_says_what_is_not(small):
    small.broker.topics.create("fifo", TopicType.FIFO)
    answers = small.broker.send_each(
        [
            Draft("orders", b"1", delay_ms=5),
            Draft("fifo", b"2"),
            Draft("o o", b"3"),
            Draft("orders", b"4", delay_ms=5),
        ]
    )
    assert [type(answer) for answer in answers][::3] == [SendResult, SendResult]
    assert isinstance(answers[1], WrongMessageTypeError)
    assert isinstance(answers[2], RequestError)
    small.advance(5)
    assert small.bodies("orders") == [b"1", b"4"]


def test_a_batch_larger_than_a_frame_is_stored_in_order(small):
    count = 20_000
    receipts = small.broker.send([Draft("big", b"%d" % i, delay_ms=3) for i in range(count)])
    assert [r.handle.seq for r in receipts] == list(range(count))
    assert len({r.id for r in receipts}) == count
    small.advance(3)
    assert sorted(map(int, small.bodies("big"))) == list(range(count))
    assert small.broker.cancel([receipts[-1].handle]) == ["released"]


def test_a_level_above_the_highest_is_clamped_and_said_so(small):
    receipt = small.send("orders", level=99)
    assert receipt.deliver_at_ms == START_MS + 2 * HOUR_MS
    assert "18 was used" in receipt.note
    assert small.send("orders", level=2).deliver_at_ms == START_MS + 5_000
