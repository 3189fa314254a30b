"""The oracle itself, held to a plain sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.testing.heap_timer import HeapTimer


@given(st.lists(st.integers(0, 50), max_size=30), st.lists(st.integers(0, 60), max_size=8))
def test_everything_comes_once_in_order(due_times, moments):
    timer = HeapTimer()
    for seq, due_ms in enumerate(due_times):
        timer.add(seq, due_ms)
    came = [pair for moment in [*sorted(moments), 100] for pair in timer.advance(moment)]
    assert came == sorted((due_ms, seq) for seq, due_ms in enumerate(due_times))
    assert len(timer) == 0
    assert timer.next_due_ms() is None


def test_cancelled_and_rescheduled_timers():
    timer = HeapTimer()
    for seq in range(4):
        timer.add(seq, 100)
    assert timer.cancel(1)
    assert not timer.cancel(1)
    assert timer.reschedule(2, 50)
    assert timer.reschedule(3, 300)
    assert timer.reschedule(3, 100)
    assert not timer.reschedule(9, 1)
    assert timer.next_due_ms() == 50
    assert timer.advance(100) == [(50, 2)]
    assert timer.advance(101) == [(100, 0), (100, 3)]
    assert 3 not in timer
    assert timer.advance(1_000) == []
