"""A bound on bytes that are held at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.byte_budget import ByteBudget
from tidemill.core.errors import TooManyRequestsError


def test_one_request_alone_is_let_in_however_large():
    bound = ByteBudget(10)
    with bound.hold(1_000):
        assert bound.held == 1_000
        with pytest.raises(TooManyRequestsError, match="in-flight limit reached: 1000/10 bytes"):
            with bound.hold(1):
                pass
    assert bound.held == 0


def test_what_failed_is_let_go():
    bound = ByteBudget(10)
    with pytest.raises(ValueError, match="no"):
        with bound.hold(5):
            raise ValueError("no")
    assert bound.held == 0


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 100))
def test_more_than_the_bound_is_never_under_way_unless_alone(sizes, limit):
    bound = ByteBudget(limit)

    def enter(left):
        if not left:
            return
        held = bound.held
        try:
            with bound.hold(left[0]):
                assert bound.held <= limit or held == 0
                enter(left[1:])
        except TooManyRequestsError:
            assert held
            assert held + left[0] > limit
        assert bound.held == held

    enter(sizes)
