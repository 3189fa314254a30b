"""Cancel and reschedule: every answer is definite and true."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.small_broker import START_MS
from tidemill.core.model import CancelAnswer, Draft, Handle

CANCELLED, RELEASED = CancelAnswer.CANCELLED, CancelAnswer.RELEASED
ALREADY, UNKNOWN = CancelAnswer.ALREADY_CANCELLED, CancelAnswer.UNKNOWN


def test_each_handle_gets_its_own_answer(small):
    near = small.send("orders", b"near", delay_ms=1_000)
    far = small.send("orders", b"far", delay_ms=100_000)
    gone = small.send("orders", b"gone", delay_ms=5)
    small.advance(5)
    assert small.broker.cancel([near.handle, far.handle, gone.handle]) == [CANCELLED, CANCELLED, RELEASED]
    assert small.broker.cancel([gone.handle, far.handle, near.handle]) == [RELEASED, ALREADY, ALREADY]
    small.advance(200_000)
    assert small.bodies("orders") == [b"gone"]
    assert small.broker.status().cancelled == 2


def test_a_handle_twice_in_one_batch_is_cancelled_once(small):
    receipts = [small.send("orders", delay_ms=1_000) for _ in range(2)]
    a, b = (receipt.handle for receipt in receipts)
    assert small.broker.cancel([b, a, b, a, a]) == [CANCELLED, CANCELLED, ALREADY, ALREADY, ALREADY]
    assert small.broker.status().cancelled == 2


def test_an_empty_batch_writes_nothing(small):
    small.send("orders", delay_ms=1_000)
    end = small.log_end
    assert small.broker.cancel([]) == []
    assert small.broker.reschedule([], by_ms=1) == []
    assert small.log_end == end


def test_a_handle_that_names_nothing_here_is_unknown(small):
    handle = small.send("orders", id="x", delay_ms=1_000).handle
    strangers = [
        replace(handle, broker="OTHER"),
        replace(handle, topic="nope"),
        replace(handle, id="y"),
        Handle(small.broker.id, "orders", "z", 10_000),
        Handle(small.broker.id, "orders", "z", -5),
        Handle("OTHER", "orders", "z", 1 << 61),
    ]
    end = small.log_end
    assert small.broker.cancel(strangers) == [UNKNOWN] * len(strangers)
    assert [r.answer for r in small.broker.reschedule(strangers, by_ms=5)] == [UNKNOWN] * len(strangers)
    assert small.log_end == end
    assert small.broker.cancel([handle]) == [CANCELLED]


def test_a_wrong_seq_is_put_right_by_the_id(small):
    handle = small.send("orders", id="x", delay_ms=1_000).handle
    other = small.send("orders", id="y", delay_ms=1_000).handle
    assert small.broker.cancel([replace(handle, seq=other.seq)]) == [CANCELLED]
    assert [p.id for p in small.broker.views.pending()] == ["y"]


def test_a_handle_of_a_deleted_topic_is_unknown(small):
    handle = small.send("doomed", delay_ms=1_000).handle
    assert small.broker.topics.delete("doomed", is_forced=True) == 1
    assert small.broker.cancel([handle]) == [UNKNOWN]
    small.send("doomed", delay_ms=1_000)
    assert small.broker.cancel([handle]) == [UNKNOWN]


def test_the_handle_from_before_a_reschedule_still_works(small):
    first = small.send("orders", b"x", delay_ms=1_000).handle
    (second,) = small.broker.reschedule([first], by_ms=5_000)
    (third,) = small.broker.reschedule([first], by_ms=5_000)
    assert third.deliver_at_ms == START_MS + 11_000
    assert small.broker.cancel([second.handle]) == [CANCELLED]
    assert small.broker.cancel([first, second.handle, third.handle]) == [ALREADY] * 3


def test_a_rescheduled_message_goes_at_its_new_time_only(small):
    sooner = small.send("orders", b"sooner", delay_ms=500_000)
    later = small.send("orders", b"later", delay_ms=1_000)
    far = small.send("orders", b"far", delay_ms=2_000)
    answers = small.broker.reschedule([sooner.handle], deliver_at_ms=START_MS + 3_000)
    answers += small.broker.reschedule([later.handle, far.handle], by_ms=100_000)
    assert [a.answer for a in answers] == [None] * 3
    small.advance(600_000)
    released = {m.body: m.released_at_ms - START_MS for m in small.in_topic("orders")}
    assert released == {b"sooner": 3_000, b"later": 101_000, b"far": 102_000}


def test_rescheduling_to_a_time_that_has_passed_releases_now(small):
    handle = small.send("orders", b"x", delay_ms=500_000).handle
    small.broker.reschedule([handle], by_ms=-(10**15))
    small.advance(1)
    assert small.bodies("orders") == [b"x"]
    (answer,) = small.broker.reschedule([handle], by_ms=5)
    assert (answer.answer, answer.handle) == (RELEASED, None)


def test_a_handle_twice_in_one_reschedule_moves_once(small):
    handle = small.send("orders", delay_ms=1_000).handle
    first, second = small.broker.reschedule([handle, handle], by_ms=500)
    assert first == second
    assert first.deliver_at_ms == START_MS + 1_500
    assert small.broker.status().pending == 1


def test_rescheduling_what_was_cancelled_moves_nothing(small):
    handle = small.send("orders", delay_ms=1_000).handle
    small.broker.cancel([handle])
    (answer,) = small.broker.reschedule([handle], by_ms=500)
    assert (answer.answer, answer.handle, answer.deliver_at_ms) == (ALREADY, None, None)


# -- by key, by range -----------------------------------------------------------------------------


def test_by_key_acts_on_all_that_wait_with_it_and_on_nothing_else(small):
    drafts = [Draft("orders", b"%d" % i, delay_ms=1_000 * (i + 1), keys=("k", f"n{i}")) for i in range(4)]
    small.broker.send(
        [*drafts, Draft("orders", b"direct", keys=("k",)), Draft("other", b"o", delay_ms=9, keys=("k",))]
    )
    small.advance(1_000)
    assert small.broker.reschedule_where("orders", key="k", by_ms=100) == 3
    assert small.broker.cancel_where("orders", key="n3") == 1
    assert small.broker.cancel_where("orders", key="n3") == 0
    assert small.broker.cancel_where("orders", key="k") == 2
    small.advance(10_000)
    assert sorted(small.bodies("orders")) == [b"0", b"direct"]
    assert small.bodies("other") == [b"o"]


def test_by_range_acts_on_a_half_open_span_of_due_times(small):
    for i in range(5):
        small.send("orders", b"%d" % i, delay_ms=100_000 + i)
    small.send("other", b"o", delay_ms=100_002)
    low = START_MS + 100_000
    assert small.broker.cancel_where("orders", from_ms=low + 1, to_ms=low + 3) == 2
    assert small.broker.reschedule_where("orders", from_ms=low, to_ms=low + 4, by_ms=-50_000) == 2
    small.advance(99_000)
    assert small.bodies("orders") == [b"0", b"3"]
    small.advance(9_000)
    assert small.bodies("orders") == [b"0", b"3", b"4"]


@pytest.mark.slow
def test_more_than_a_batch_moves_and_cancels_in_one_call(small):
    small.broker.send([Draft("orders", b"", delay_ms=100_000 + i, keys=("k",)) for i in range(1_300)])
    assert small.broker.reschedule_where("orders", key="k", by_ms=7) == 1_300
    pending = small.broker.views.pending(limit=5_000)
    assert [p.deliver_at_ms for p in pending] == [START_MS + 100_007 + i for i in range(1_300)]
    assert small.broker.cancel_where("orders", from_ms=0, to_ms=1 << 60) == 1_300
    assert small.broker.status().pending == 0


def test_answers_stay_the_same_after_a_kill(small):
    handles = [small.send("orders", delay_ms=5 if i % 2 else 90_000).handle for i in range(6)]
    small.advance(5)
    small.broker.reschedule(handles[:1], by_ms=1)
    assert small.broker.cancel(handles) == [CANCELLED, RELEASED] * 3
    small.kill_and_open()
    assert small.broker.cancel(handles) == [ALREADY, RELEASED] * 3


def test_a_message_with_the_id_of_one_that_was_released_an_hour_ago_is_the_one_its_own_handle_means(small):
    old = small.send("orders", b"old", id="x", delay_ms=5)
    small.advance(3_600_001)
    new = small.send("orders", b"new", id="x", delay_ms=90_000)
    assert small.broker.cancel([old.handle, new.handle]) == [RELEASED, CANCELLED]


@pytest.mark.slow
def test_a_message_pushed_on_again_and_again_stays_cheap_to_find(small):
    """Each move leaves a reference behind; none of them may be read again."""
    first = small.send("orders", b"x", delay_ms=90_000, keys=("k",)).handle
    for _ in range(200):
        small.broker.reschedule([first], by_ms=1)
    store, topic = small.broker.store, small.broker.topics.require("orders")
    reads: list[int] = []
    original = store.message
    store.message = lambda place: reads.append(place) or original(place)
    try:
        assert small.broker.reschedule_where("orders", key="k", by_ms=1) == 1
        assert len(store.seqs_with_id(topic.id, first.id)) == 1
    finally:
        store.message = original
    assert len(reads) < 10
    assert small.broker.cancel([first]) == [CANCELLED]
