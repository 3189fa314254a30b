"""What a delivered message says about its way: how often it was rolled, exactly, or nothing."""

from __future__ import annotations

import pytest

from helpers.small_broker import START_MS, TIMER
from tidemill.broker.query.table_schemas import Wanted
from tidemill.core.model import Via

# The wheel of a small broker takes 1,024 s; a timer further away comes back after 1,023 s, if its seq is low.
_FAR_MS = 5_000_000
_ROLLS = 4


def _pass(small, ms: int, *, hop_ms: int = 20_000) -> None:
    """Let time pass in hops: one leap would hand over from a roll slot what is due by then, unrolled."""
    for _ in range(ms // hop_ms):
        small.advance(hop_ms)


def _rolls(small, topic: str = "t") -> dict[bytes, int | None]:
    return {d.message.body: d.rolls for d in small.broker.receive(topic, "looker", invisible_ms=1)}


def test_each_message_says_how_often_it_was_rolled(small):
    small.send("t", b"direct")
    small.send("t", b"near", delay_ms=5_000)
    small.send("t", b"level", level=5)
    small.send("t", b"in the wheel", delay_ms=900_000)
    small.send("t", b"further than the wheel", delay_ms=_FAR_MS)
    _pass(small, _FAR_MS)
    assert _rolls(small) == {
        b"direct": None,
        b"near": 0,
        b"level": 0,
        b"in the wheel": 0,
        b"further than the wheel": _ROLLS,
    }


@pytest.mark.parametrize("power_cut", [False, True])
def test_a_crash_between_does_not_change_the_count(small, power_cut):
    small.send("t", b"far", delay_ms=_FAR_MS)
    for _ in range(5):
        _pass(small, 1_000_000)
        small.kill_and_open(power_cut=power_cut)
    assert _rolls(small) == {b"far": _ROLLS}
    small.kill()
    small.delete("index")
    small.open()
    small.clock.advance(10)
    assert _rolls(small) == {b"far": _ROLLS}


def test_rocksdb_rolls_nothing(make_small):
    small = make_small(timer_store="rocksdb")
    small.send("t", b"far", delay_ms=_FAR_MS)
    _pass(small, _FAR_MS)
    assert _rolls(small) == {b"far": 0}


def test_the_count_is_that_of_the_wheel_that_handed_the_message_over(small):
    """It begins again where the message is taken in again: by a new wheel, or because it was moved."""
    small.send("t", b"rebuilt", delay_ms=_FAR_MS)
    moved = small.send("t", b"moved", delay_ms=9_000_000)
    _pass(small, 3_000_000)
    small.broker.reschedule([moved.handle], deliver_at_ms=START_MS + _FAR_MS)
    small.kill()
    small.delete("timer")
    small.open()
    _pass(small, 2_000_000)
    assert _rolls(small) == {b"rebuilt": 1, b"moved": 1}


def test_nothing_is_said_where_the_count_is_lost(small):
    """A paused topic's ready file is removed; after a restart the message is found by its entry alone."""
    small.send("t", b"far", delay_ms=_FAR_MS)
    small.broker.topics.change("t", is_paused=True)
    _pass(small, _FAR_MS + 20_000)
    small.kill_and_open()
    small.broker.topics.change("t", is_paused=False)
    small.advance(1)
    assert _rolls(small) == {b"far": None}


def test_a_restart_just_before_the_time_keeps_what_the_ready_file_says(small):
    small.send("t", b"far", delay_ms=_FAR_MS)
    _pass(small, _FAR_MS - 200_000)
    small.advance(190_000)  # handed over, and not due for ten seconds
    small.kill_and_open()
    small.advance(10_000)
    (delivery,) = small.broker.receive("t", "g")
    assert (delivery.rolls, delivery.via, delivery.released_at_ms) == (
        _ROLLS,
        Via.EMBEDDED,
        START_MS + _FAR_MS,
    )


def test_tables_and_looks_show_it_too(small):
    far = small.send("t", b"far", delay_ms=_FAR_MS, id="f")
    small.send("t", b"direct")
    _pass(small, _FAR_MS)
    for table, expected in (("history", [_ROLLS]), ("messages", [None, _ROLLS])):
        batches = small.broker.tables.read(Wanted(table, "t", columns=("rolls",)))
        found = [rolls for batch in batches for rolls in batch["rolls"].to_pylist()]
        assert sorted(found, key=str) == sorted(expected, key=str)
    story = small.broker.views.messages.story("t", far.id)
    assert story is not None
    assert story.rolls == _ROLLS
    assert {m.message.body: m.rolls for q in (0, 1) for m in small.broker.views.read("t", q, 0, 9)} == {
        b"far": _ROLLS,
        b"direct": None,
    }


def test_the_window_of_these_tests_is_the_one_they_reckon_with():
    assert (TIMER.roll_window_slots, TIMER.tick_ms) == (1024, 1000)
