"""What people look at: counts of a window, a message's story, the wheel's dials, the history, the steps."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.small_broker import START_MS
from tidemill.broker.control.spark_steps import StepLog
from tidemill.broker.query import message_history, wheel_picture
from tidemill.broker.query.metrics_history import MetricsHistory, Sample
from tidemill.core.errors import RequestError, UnknownTopicError
from tidemill.core.model import Draft, Via
from tidemill.timer.cursor import Cursor

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
FIRST_MS = START_MS // MINUTE_MS * MINUTE_MS


def _send_at(small, topic, *delays_ms):
    return small.broker.send([Draft(topic, b"x", deliver_at_ms=START_MS + delay) for delay in delays_ms])


# -- forecast window ------------------------------------------------------------------------------


@pytest.mark.parametrize("step_ms", [1_000, 7_000, MINUTE_MS, HOUR_MS])
@pytest.mark.parametrize("topic", [None, "b"])
def test_a_window_counts_what_falls_due_in_each_step(small, step_ms, topic) -> None:
    chance = np.random.default_rng(7)
    delays = {name: chance.integers(0, 3 * HOUR_MS, 200).tolist() for name in "abc"}
    for name, values in delays.items():
        _send_at(small, name, *values)
    from_ms, steps = FIRST_MS + MINUTE_MS, 40
    found = small.broker.views.due.window(topic_name=topic, from_ms=from_ms, step_ms=step_ms, steps=steps)
    wanted = {}
    for name, values in delays.items():
        if topic in (None, name):
            which = [(START_MS + delay - from_ms) // step_ms for delay in values]
            counts = [which.count(step) for step in range(steps)]
            if any(counts):
                wanted[name] = counts
    assert {name: counts.tolist() for name, counts in found.by_topic.items()} == wanted
    assert found.due.tolist() == [sum(counts) for counts in zip([0] * steps, *wanted.values(), strict=True)]
    assert found.others is None
    pending = sum(len(values) for name, values in delays.items() if topic in (None, name))
    assert found.before + int(found.due.sum()) + found.later == pending
    if step_ms % MINUTE_MS == 0:
        early = [d for n, values in delays.items() if topic in (None, n) for d in values]
        assert found.before == sum(START_MS + delay < from_ms for delay in early)


def test_of_many_topics_the_small_ones_are_summed_up(small) -> None:
    for number in range(9):
        _send_at(small, f"t{number}", *[HOUR_MS] * (number + 1))
    found = small.broker.views.due.window(
        topic_name=None, from_ms=FIRST_MS, step_ms=2 * HOUR_MS // 60_000 * 60_000, steps=1
    )
    assert list(found.by_topic) == ["t8", "t7", "t6", "t5", "t4"]
    assert found.others is not None
    assert found.others.tolist() == [1 + 2 + 3 + 4]
    assert found.due.tolist() == [45]


def test_a_window_that_makes_no_sense_is_refused(small) -> None:
    due = small.broker.views.due
    for given in ({"steps": 0}, {"steps": 1 << 20}, {"step_ms": 1}, {"from_ms": -1}):
        with pytest.raises(RequestError):
            due.window(**{"topic_name": None, "from_ms": 0, "step_ms": 60_000, "steps": 1, **given})
    with pytest.raises(UnknownTopicError):
        due.window(topic_name="none", from_ms=0, step_ms=60_000, steps=1)
    assert due.window(topic_name=None, from_ms=0, step_ms=60_000, steps=3).due.tolist() == [0, 0, 0]


# -- pending --------------------------------------------------------------------------------------


@pytest.mark.parametrize("spare", [0, 1024])
def test_the_earliest_are_found_wherever_they_lie(small, monkeypatch, spare) -> None:
    monkeypatch.setattr("tidemill.broker.query.views._SETTLED_MEANWHILE", spare)
    chance = np.random.default_rng(3)
    delays = chance.integers(MINUTE_MS, 20 * HOUR_MS, 300).tolist()
    _send_at(small, "a", *delays)
    views = small.broker.views
    for from_ms in (0, START_MS + 5 * HOUR_MS + 123, START_MS + 19 * HOUR_MS):
        wanted = sorted(START_MS + d for d in delays if START_MS + d >= from_ms)
        for limit in (1, 10, 299, 400):
            found = views.pending(from_ms=from_ms, limit=limit)
            assert [message.deliver_at_ms for message in found] == wanted[:limit]


# -- one message ----------------------------------------------------------------------------------


def test_what_became_of_each_message_with_a_key(small) -> None:
    """Many queue rows lie before some of them, and untimed ones between."""
    small.broker.topics.create("a", queue_count=1)
    for number in range(40):
        small.send("a", b"", keys=("other",))
        small.send("a", bytes([number]), keys=("k",), delay_ms=1_000 * (number % 7) or None)
    small.broker.topics.change("a", is_paused=True)
    small.advance(4_000)
    small.broker.topics.change("a", is_paused=False)
    small.advance(1_000)
    found = {one.message.body[0]: one for one in small.broker.views.find("a", "k")}
    in_queue = {
        q.message.body[0]: ("released", 0, q.offset, q.released_at_ms)
        for q in small.broker.views.read("a", 0, 0, 1_000)
        if q.message.body
    }
    assert len(in_queue) == 40 - 5
    assert {n: (o.state, o.queue_id, o.offset, o.released_at_ms) for n, o in found.items()} == {
        number: in_queue.get(number, ("pending", None, None, None)) for number in range(40)
    }


def test_the_story_of_a_message_from_its_send_to_its_settling(small) -> None:
    (receipt,) = small.broker.send([Draft("a", b"hello", deliver_at_ms=START_MS + 2 * HOUR_MS, keys=("k",))])
    histories = small.broker.views.messages
    story = histories.story("a", receipt.id)
    assert story is not None
    assert (story.state, story.message.body, story.message.keys) == ("pending", b"hello", ("k",))
    assert [(e.what, e.at_ms, e.deliver_at_ms) for e in story.history] == [
        ("stored", START_MS, START_MS + 2 * HOUR_MS)
    ]
    small.advance(1_000)
    small.broker.reschedule([receipt.handle], by_ms=-HOUR_MS)
    story = histories.story("a", receipt.id, receipt.handle.seq)
    assert story is not None
    assert story.handle.seq != receipt.handle.seq
    assert [(e.what, e.at_ms, e.deliver_at_ms) for e in story.history][1:] == [
        ("rescheduled", START_MS + 1_000, START_MS + HOUR_MS)
    ]
    small.advance(HOUR_MS)
    story = histories.story("a", receipt.id)
    assert story is not None
    assert (story.state, story.released_at_ms, story.via) == ("released", START_MS + HOUR_MS, Via.EMBEDDED)
    assert story.history[-1].at_ms == START_MS + HOUR_MS
    (delivery,) = small.broker.receive("a", "g")
    assert (story.queue_id, story.offset) == (delivery.queue_id, delivery.offset)
    taken = histories.story("a", receipt.id)
    assert taken is not None
    assert [(g.group, g.standing, g.attempt) for g in taken.groups] == [("g", "taken", 1)]
    small.broker.ack([delivery.ack_token])
    settled = histories.story("a", receipt.id)
    assert settled is not None
    assert [(g.group, g.standing) for g in settled.groups] == [("g", "settled")]


def test_a_cancelled_message_and_an_unknown_one(small) -> None:
    (receipt,) = small.broker.send([Draft("a", b"x", deliver_at_ms=START_MS + HOUR_MS)])
    (other,) = small.broker.send([Draft("a", b"y", deliver_at_ms=START_MS + HOUR_MS)])
    small.advance(1_000)
    small.broker.cancel([other.handle])
    small.advance(1_000)
    small.broker.cancel([receipt.handle])
    small.advance(1_000)
    story = small.broker.views.messages.story("a", receipt.id)
    assert story is not None
    last = story.history[-1]
    assert (story.state, last.what, last.at_ms) == ("cancelled", "cancelled", START_MS + 2_000)
    assert small.broker.views.messages.story("a", "nobody") is None


def test_a_cancel_too_far_behind_has_no_time(small, monkeypatch) -> None:
    monkeypatch.setattr(message_history, "_FRAMES_LOOKED_AT", 10)
    monkeypatch.setattr(message_history, "_FRAMES_AT_ONCE", 5)
    (receipt,) = small.broker.send([Draft("a", b"x", deliver_at_ms=START_MS + HOUR_MS)])
    for _ in range(10):
        small.broker.send([Draft("a", b"x", deliver_at_ms=START_MS + HOUR_MS)])
    small.broker.cancel([receipt.handle])
    story = small.broker.views.messages.story("a", receipt.id)
    assert story is not None
    assert (story.history[-1].what, story.history[-1].at_ms) == ("cancelled", None)


def test_a_message_moved_on_by_retention_says_so(small) -> None:
    (receipt,) = small.broker.send([Draft("a", b"x", deliver_at_ms=START_MS + 30 * HOUR_MS)])
    for _ in range(6):
        small.fill_segment()
        small.advance(HOUR_MS)
    story = small.broker.views.messages.story("a", receipt.id)
    assert story is not None
    assert story.state == "pending"
    assert story.history[0].what == "stored"
    assert "kept" in [event.what for event in story.history]


def test_ids_that_repeat_are_distinguished_by_seq(small) -> None:
    first = small.send("a", b"1", id="same", deliver_at_ms=START_MS + HOUR_MS)
    small.broker.cancel([first.handle])
    small.advance(2 * HOUR_MS)  # after which the same id is another message
    second = small.send("a", b"2", id="same", delay_ms=HOUR_MS)
    histories = small.broker.views.messages
    old, new = (histories.story("a", "same", r.handle.seq) for r in (first, second))
    assert old is not None
    assert new is not None
    assert (old.message.body, old.state) == (b"1", "cancelled")
    assert (new.message.body, new.state) == (b"2", "pending")


# -- the wheel ------------------------------------------------------------------------------------


def test_the_dials_show_what_is_in_the_slots(small) -> None:
    _send_at(small, "a", *[40_000] * 3, 50_500, *[90_000] * 4, 10 * MINUTE_MS)
    small.advance(1_000)
    picture = small.broker.wheel.picture()
    assert picture.has_wheel
    assert picture.timers == 9
    assert picture.filled_slots == 4
    assert (picture.fullest, picture.fullest_at_ms) == (4, (START_MS + 90_000) // 1000 * 1000)
    minute, hour, window = picture.dials
    due = [*[40_000] * 3, 50_500]
    wanted = [0] * 60
    for delay in due:
        wanted[(START_MS + delay) // 1000 % 60] += 1
    assert minute.loads.tolist() == wanted
    assert int(hour.loads.sum()) == 9
    assert hour.loads[(START_MS + 10 * MINUTE_MS) // MINUTE_MS % 60] == 1
    assert int(window.loads.sum()) == 9
    assert window.turn_ms == small.timer_settings.roll_window_slots * 1000


def test_the_dials_leave_out_what_was_cancelled_or_moved(small) -> None:
    due_ms = 10 * MINUTE_MS
    receipts = _send_at(small, "a", *[due_ms] * 1_000)
    small.advance(1_000)
    small.broker.cancel([receipt.handle for receipt in receipts[:900]])
    small.broker.reschedule([receipts[999].handle], delay_ms=15 * MINUTE_MS)
    small.advance(1_000)
    picture = small.broker.wheel.picture()
    assert picture.timers == 100  # 99 where they were, and the one that was moved
    assert (picture.fullest, picture.filled_slots) == (99, 2)
    _, hour, window = picture.dials
    assert hour.loads[(START_MS + due_ms) // MINUTE_MS % 60] == 99
    assert int(hour.loads.sum()) == int(window.loads.sum()) == 100


def test_a_minute_that_was_cancelled_in_part_shows_what_is_left_in_proportion(small) -> None:
    start_ms = FIRST_MS + 5 * MINUTE_MS - START_MS
    delays = [start_ms + 1_000 * second for second in range(30) for _ in range(10)]
    receipts = _send_at(small, "a", *delays)
    _send_at(small, "b", start_ms + MINUTE_MS)
    small.advance(1_000)
    small.broker.cancel([receipt.handle for receipt in receipts[::2]])
    loads = small.broker.wheel.picture().dials[1].loads
    assert loads[(FIRST_MS // MINUTE_MS + 5) % 60] == 150
    assert loads[(FIRST_MS // MINUTE_MS + 6) % 60] == 1
    assert small.broker.wheel.picture().fullest == 5


@pytest.mark.parametrize("seed", range(20))
def test_lowered_counts_keep_to_the_limit_of_each_part(seed) -> None:
    chance = np.random.default_rng(seed)
    counts = chance.integers(0, 50, 300)
    parts = np.sort(chance.integers(0, 12, 300))
    limits = chance.integers(0, 900, 12)
    lowered = wheel_picture._at_most(counts, parts, limits)
    totals = np.bincount(parts, counts, minlength=12)
    assert (np.bincount(parts, lowered, minlength=12) == np.minimum(totals, limits)).all()
    assert (lowered >= 0).all()
    assert (lowered <= counts).all()


def test_what_a_former_lap_left_does_not_show(small) -> None:
    _send_at(small, "a", *[40_000] * 3)
    small.advance(1_000)
    assert small.broker.wheel.picture().timers == 3
    small.advance(small.timer_settings.slots * 1000)
    assert small.broker.wheel.picture().timers == 0


# -- the history ------------------------------------------------------------------------------------


def _sample(number: int) -> Sample:
    return Sample(number, 2 * number, 0, 5, tuple([number] * 16))


def test_the_pulse_keeps_a_sample_for_every_second() -> None:
    numbers = iter(range(10_000))
    history = MetricsHistory(lambda: _sample(next(numbers)))
    now_ms = 1_000_300
    for _ in range(1_000):
        wake_ms = history.step(now_ms)
        assert wake_ms % 1_000 == 0
        assert 0 < wake_ms - now_ms <= 1_000
        now_ms = wake_ms
    view = history.view(1_000)
    assert len(view.at_ms) == 900
    assert view.sent.tolist() == list(range(100, 1_000))
    assert (np.diff(view.at_ms) > 0).all()
    assert view.lateness.shape == (900, 16)
    assert history.view(1_000, since_ms=int(view.at_ms[-3])).sent.tolist() == [998, 999]
    assert len(history.view(60_000).at_ms) == 18


def test_a_clock_set_back_begins_the_pulse_again() -> None:
    history = MetricsHistory(lambda: _sample(1))
    for now_ms in (5_000_000, 5_001_000, 4_000_000):
        history.step(now_ms)
    assert history.view(1_000).at_ms.tolist() == [4_000_000]


def test_the_brokers_pulse_says_what_status_says(small) -> None:
    _send_at(small, "a", 5_000, HOUR_MS)
    small.broker.run_due()
    small.advance(10_000)
    small.broker.run_due()
    view, status = small.broker.metrics_history.view(1_000), small.broker.status()
    assert (view.sent[-1], view.released[-1], view.pending[-1]) == (2, 1, 1)
    assert (status.sent, status.released, status.pending) == (2, 1, 1)
    assert int(view.lateness[-1].sum()) == 1


# -- the last steps -------------------------------------------------------------------------------


def test_steps_are_seen_when_the_cursors_move() -> None:
    log = StepLog(1_000)
    log.see(1, "embedded", (Cursor(step=4, seq=10, tick=50), Cursor(step=4, seq=10, tick=50)))
    assert log.latest() == []
    log.see(2, "embedded", (Cursor(step=4, seq=10, tick=50), Cursor(step=4, seq=10, tick=50)))
    assert log.latest() == []
    log.see(3, "spark", (Cursor(step=5, seq=30, tick=60), Cursor(step=6, seq=25, tick=61)))
    (seen,) = log.latest()
    assert (seen.at_ms, seen.runner, seen.steps, seen.rows) == (3, "spark", 3, 15)
    assert seen.drained_to_ms == 60_000


def test_the_broker_notes_its_own_steps(small) -> None:
    small.broker.run_due()
    _send_at(small, "a", *[HOUR_MS] * 5)
    small.advance(8_000)
    assert [step.runner for step in small.broker.steps.latest()][:1] == ["embedded"]
