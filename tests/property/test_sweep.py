"""The decision what to sweep, against a plain list of messages; and when a scan is made again."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.limits import MINUTE_MS
from tidemill.release.sweeper import RETRY_MS_FIRST, RETRY_MS_MAX, SweepRule, surplus
from tidemill.store.due_counts import DueCounts

# A message: topic, minute, whether it is pending, and whether it is in memory.
_MESSAGES = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 5), st.booleans(), st.booleans()), max_size=40
)
_SPILLED = st.sets(st.integers(1, 3))


def _by_topic(pairs) -> dict[int, Counter[int]]:
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for topic_id, minute in pairs:
        counts[topic_id][minute] += 1
    return counts


@given(_MESSAGES, _SPILLED)
def test_a_minute_is_swept_just_where_a_pending_message_is_held_nowhere(messages, spilled) -> None:
    pending = _by_topic((topic, minute) for topic, minute, is_pending, _ in messages if is_pending)
    held = _by_topic(
        (topic, minute) for topic, minute, is_pending, is_held in messages if is_pending and is_held
    )
    lost = Counter(
        minute
        for topic, minute, is_pending, is_held in messages
        if is_pending and not is_held and topic not in spilled
    )
    assert surplus(pending, held, spilled) == dict(lost)
    minutes = SweepRule(needs_two_looks=False).decide(surplus(pending, held, spilled), 0)
    assert minutes == ((min(lost), max(lost) + 1) if lost else None)


@given(_MESSAGES, _SPILLED)
def test_what_is_held_and_no_longer_pending_hides_nothing_of_another_topic(messages, spilled) -> None:
    pending = _by_topic((topic, minute) for topic, minute, is_pending, _ in messages if is_pending)
    held = _by_topic((topic, minute) for topic, minute, _, is_held in messages if is_held)
    for topic_id in pending:
        alone = surplus({topic_id: pending[topic_id]}, held, spilled)
        together = surplus(pending, held, spilled)
        assert all(together[minute] >= count for minute, count in alone.items())


@given(st.integers(1, 1_000), st.integers(1, 400))
def test_a_surplus_that_no_scan_explains_is_scanned_ever_more_seldom(count: int, looks: int) -> None:
    rule = SweepRule(needs_two_looks=False)
    times = (look * RETRY_MS_FIRST for look in range(looks))
    scans = [at for at in times if rule.decide({7: count}, at) is not None]
    gaps = [later - earlier for earlier, later in pairwise(scans)]
    assert gaps == sorted(gaps)
    assert all(gap <= RETRY_MS_MAX + 2 * RETRY_MS_FIRST for gap in gaps)
    assert len(scans) <= 10 + looks // 50


def test_a_surplus_that_grows_is_scanned_at_once() -> None:
    rule = SweepRule(needs_two_looks=False)
    assert rule.decide({7: 5, 9: 1}, 0) == (7, 10)
    assert rule.decide({7: 5}, 1_000) is None
    assert rule.decide({7: 5, 8: 1}, 2_000) == (8, 9)
    assert rule.decide({}, 3_000) is None
    assert rule.decide({7: 5}, 4_000) == (7, 8)


def test_with_threads_a_surplus_must_last_for_two_looks() -> None:
    rule = SweepRule(needs_two_looks=True)
    assert rule.decide({7: 5}, 0) is None
    assert rule.decide({}, 5_000) is None
    assert rule.decide({7: 5}, 10_000) is None
    assert rule.decide({8: 5}, 15_000) is None
    assert rule.decide({8: 2, 9: 4}, 20_000) == (8, 9)


_CHANGES = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 2_000), st.integers(1, 300), st.integers(0, 300)), max_size=30
)


@given(_CHANGES, st.integers(0, 2_100))
def test_the_counts_of_past_minutes_are_those_of_a_plain_count(changes, minute: int) -> None:
    counts, plain = DueCounts(), Counter()
    for topic_id, at, added, taken in changes:
        taken = min(added, taken)
        for count, sign in ((added, 1), (taken, -1)):
            counts.add(np.full(count, topic_id, np.uint32), np.full(count, at * MINUTE_MS), sign)
        plain[topic_id, at] += added - taken
    kept = +plain
    for seen in (counts, DueCounts.decode(counts.encode())):
        expected = defaultdict(dict)
        for (topic_id, at), count in kept.items():
            if at < minute:
                expected[topic_id][at] = count
        assert seen.before(minute) == dict(expected)
        assert seen.first(minute) == min((at for _, at in kept if at >= minute), default=None)
