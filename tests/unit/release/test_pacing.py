"""The releaser pauses between records only where they follow each other in a long row."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.release.commit_window import PAUSE_MS, Pacing


def _after(*times_ms: int) -> Pacing:
    pacing = Pacing()
    for now_ms in times_ms:
        pacing.record_made(now_ms)
    return pacing


def test_a_long_row_of_records_makes_the_next_one_wait() -> None:
    pacing = _after(*range(1_000, 1_010))
    assert pacing.pauses(1_009)
    assert pacing.pauses(1_009 + PAUSE_MS - 1)
    assert not pacing.pauses(1_009 + PAUSE_MS)


def test_the_row_goes_on_while_every_record_waits() -> None:
    pacing = _after(*range(1_000, 1_010))
    for turn in range(1, 20):
        pacing.record_made(1_009 + turn * PAUSE_MS)
        assert pacing.pauses(1_009 + turn * PAUSE_MS)


@given(st.lists(st.integers(7, 1_000), max_size=50))
def test_messages_that_come_one_by_one_never_wait(gaps: list[int]) -> None:
    now_ms, pacing = 10_000, Pacing()
    for gap in gaps:
        now_ms += gap
        assert not pacing.pauses(now_ms)
        pacing.record_made(now_ms)
    assert not pacing.pauses(now_ms)


@given(st.lists(st.integers(-5_000, 5_000), max_size=200), st.integers(0, 1 << 40))
def test_wherever_the_clock_is_set_nothing_waits_longer_than_a_pause(leaps: list[int], look_ms: int) -> None:
    now_ms, pacing = 1 << 30, Pacing()
    for leap in leaps:
        now_ms += leap
        pacing.record_made(now_ms)
    if pacing.pauses(look_ms):
        assert pacing.until_ms - look_ms <= PAUSE_MS


def test_without_a_pause_nothing_is_held() -> None:
    pacing = Pacing(0)
    for now_ms in range(1_000, 1_100):
        pacing.record_made(now_ms)
        assert not pacing.pauses(now_ms)
