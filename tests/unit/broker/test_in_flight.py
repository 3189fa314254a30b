"""A bound on what is under way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.broker.send.in_flight import InFlight
from tidemill.core.errors import TooManyRequests


def test_one_request_alone_is_let_in_however_large():
    bound = InFlight(10)
    with bound.hold(1_000):
        assert bound.held_bytes == 1_000
        with pytest.raises(TooManyRequests, match="in-flight limit reached: 1000/10 bytes"):
            with bound.hold(1):
                pass
    assert bound.held_bytes == 0


def test_what_failed_is_let_go():
    bound = InFlight(10)
    with pytest.raises(ValueError, match="no"):
        with bound.hold(5):
            raise ValueError("no")
    assert bound.held_bytes == 0


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 100))
def test_more_than_the_bound_is_never_under_way_unless_alone(sizes, limit):
    bound = InFlight(limit)

    def enter(left):
        if not left:
            return
        held = bound.held_bytes
        try:
            with bound.hold(left[0]):
                assert bound.held_bytes <= limit or held == 0
                enter(left[1:])
        except TooManyRequests:
            assert held
            assert held + left[0] > limit
        assert bound.held_bytes == held

    enter(sizes)
