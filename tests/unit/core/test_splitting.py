"""Items in parts that are bounded by count and by bytes."""

from __future__ import annotations

from itertools import zip_longest

from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.splitting import first_part, split

_SIZES = st.lists(st.integers(0, 30), max_size=30)


@given(_SIZES, st.integers(1, 8), st.integers(0, 40))
def test_parts_keep_to_the_bounds_and_none_could_be_larger(sizes: list[int], count: int, limit: int) -> None:
    parts = list(split(sizes, count, limit, lambda size: size))
    assert [size for part in parts for size in part] == sizes
    for part, following in zip_longest(parts, parts[1:]):
        assert len(part) <= count
        assert sum(part) <= limit or len(part) == 1
        if following is not None:
            assert len(part) == count or sum(part) + following[0] > limit
    assert first_part(sizes, count, limit, lambda size: size) == (parts[0] if parts else [])


def test_no_more_is_taken_than_a_part_needs() -> None:
    items = iter(range(10))
    assert next(split(items, 3)) == [0, 1, 2]
    assert next(items) == 4  # the one before belongs to the next part
