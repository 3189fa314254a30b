"""Open halves: found by message and by place, whatever was opened, moved and ended before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.store.open_transactions import OpenHalf, OpenTransactions, half_key

_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(1, 3), st.sampled_from("abc")),
        st.tuples(st.just("end"), st.integers(0, 12), st.just("")),
        st.tuples(st.just("forget"), st.integers(1, 3), st.just("")),
    ),
    max_size=40,
)


@given(_STEPS)
def test_they_are_as_if_looked_through_one_by_one(steps: list[tuple[str, int, str]]) -> None:
    halves, plain = OpenTransactions(), {}
    for place, (what, number, message_id) in enumerate(steps):
        if what == "open":
            half = OpenHalf(place, number, message_id, 0)
            halves.open(half)
            plain[half_key(number, message_id)] = half
        elif what == "end":
            halves.end(number)
            plain = {key: half for key, half in plain.items() if half.place != number}
        else:
            halves.forget_topic(number)
            plain = {key: half for key, half in plain.items() if half.topic_id != number}
        assert halves == plain
    again = OpenTransactions(halves)
    for half in list(again.values()):
        again.end(half.place)
    assert again == {}
