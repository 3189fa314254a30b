"""Modules of the release layer against simple models."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.model import TopicType, Via
from tidemill.release import due_set as due_set_module
from tidemill.release.backlogs import Backlogs
from tidemill.release.clock_guard import HOLD_MS, LEAP_MS, ClockGuard
from tidemill.release.due_rows import distinct, due_rows, in_order, joined
from tidemill.release.due_set import DueSet
from tidemill.release.lateness import Lateness
from tidemill.store.topics import Topic, TopicTable

_PAIRS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40)), max_size=120)


def _rows(pairs, via=Via.NEAR):
    dues, seqs = (np.array([p[i] for p in pairs], np.int64) for i in (0, 1))
    return due_rows(dues, seqs, via, _placements_of(seqs))


def _placements_of(seqs):
    return (seqs * 7 % 5).astype(np.uint16)


def _pairs(rows):
    assert (rows["placements"] == _placements_of(rows["seq"])).all()
    return list(zip(rows["deliver_at_ms"].tolist(), rows["seq"].tolist(), strict=True))


@given(_PAIRS)
def test_rows_are_ordered_by_due_time_and_seq(pairs):
    assert _pairs(in_order(_rows(pairs))) == sorted(pairs)


@given(st.lists(_PAIRS, max_size=5))
def test_joined_parts_are_one_ordered_whole(parts):
    assert _pairs(joined([_rows(part) for part in parts])) == sorted(p for part in parts for p in part)


@given(_PAIRS)
def test_distinct_keeps_the_first_row_of_each_seq(pairs):
    seen: dict[int, tuple[int, int]] = {}
    for pair in sorted(pairs):
        seen.setdefault(pair[1], pair)
    assert _pairs(distinct(in_order(_rows(pairs)))) == sorted(seen.values())


_SET_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), _PAIRS),
        st.tuples(st.just("take"), st.integers(-1, 35), st.integers(1, 50)),
    ),
    max_size=30,
)


@given(_SET_STEPS, st.sampled_from([3, 64]), st.sampled_from([5, 4096]))
def test_a_due_set_is_a_sorted_list(steps, batch_min, heap_max):
    kept = due_set_module._BATCH_MIN, due_set_module._HEAP_MAX
    due_set_module._BATCH_MIN, due_set_module._HEAP_MAX = batch_min, heap_max
    try:
        due_set, model = DueSet(), []
        for step in steps:
            if step[0] == "add":
                due_set.add(_rows(step[1]))
                model = sorted(model + step[1])
            else:
                _, now_ms, limit = step
                expected = [pair for pair in model if pair[0] <= now_ms][:limit]
                assert _pairs(due_set.take_due(now_ms, limit)) == expected
                model = model[len(expected) :]
            assert due_set.count == len(model)
            assert due_set.next_due_ms() == (model[0][0] if model else None)
    finally:
        due_set_module._BATCH_MIN, due_set_module._HEAP_MAX = kept


# -- backlogs -------------------------------------------------------------------------------------

_TICKS = st.lists(
    st.tuples(
        st.lists(
            st.tuples(st.integers(1, 3), st.integers(0, 500)), max_size=6
        ),  # (topic id, how long ago due)
        st.sampled_from(["", "pause 1", "resume 1", "limit 2", "free 2", "delete 3"]),
        st.integers(0, 700),  # ms until the next tick
    ),
    max_size=25,
)


@given(_TICKS, st.sampled_from([2, 1_000]))
def test_backlogs_lose_nothing_keep_the_order_of_each_topic_and_hold_up_no_other(ticks, rows_max):
    topics = TopicTable()
    for topic_id in (1, 2, 3):
        topics.put(Topic(topic_id, f"t{topic_id}", TopicType.MIXED, 1))
    backlogs = Backlogs(topics, rows_max)
    now_ms, seq, topic_of = 10_000, 0, {}
    waiting: dict[int, list[tuple[int, int]]] = {1: [], 2: [], 3: []}
    for arrivals, change, pause_ms in ticks:
        _change(topics, change)
        pairs = []
        for topic_id, ago_ms in arrivals:
            if topics.by_id(topic_id) is not None:
                pairs.append((now_ms - ago_ms, seq))
                topic_of[seq] = topic_id
                waiting[topic_id].append(pairs[-1])
                seq += 1
        rows = in_order(_rows(pairs))
        topic_ids = np.array([topic_of[s] for s in rows["seq"].tolist()], np.int64)
        went = _pairs(backlogs.admit(rows, topic_ids, now_ms))
        went += _refill(backlogs, waiting, went, now_ms)
        for topic_id in (1, 2, 3):
            topic = topics.by_id(topic_id)
            mine = [pair for pair in went if topic_of[pair[1]] == topic_id]
            if topic is None or topic.is_paused:
                assert not mine
                continue
            waiting[topic_id].sort()
            assert mine == waiting[topic_id][: len(mine)], "out of order"
            waiting[topic_id] = waiting[topic_id][len(mine) :]
            if not topic.release_rate_max:
                assert not waiting[topic_id] or backlogs.holds(np.array([topic_id]))[0]
        now_ms += pause_ms


def _refill(backlogs, waiting, went, now_ms):
    """What the releaser does for topics whose rows were dropped: look through the entries again."""
    for topic_id in backlogs.spilled():
        left = sorted(set(waiting[topic_id]) - set(went))
        backlogs.refill(topic_id, _rows(left[: backlogs.rows_max]), len(left) <= backlogs.rows_max)
    return []


def _change(topics, change):
    act, _, topic_id = change.partition(" ")
    topic = topics.by_id(int(topic_id)) if topic_id else None
    if topic is None:
        return
    if act == "delete":
        topics.remove(topic.id)
        return
    paused = {"pause": True, "resume": False}.get(act, topic.is_paused)
    rate = {"limit": 4, "free": 0}.get(act, topic.release_rate_max)
    topics.put(Topic(topic.id, topic.name, topic.type, 1, paused, rate))


@given(st.lists(st.integers(0, 900), min_size=1, max_size=60), st.integers(1, 50))
def test_a_rate_is_never_exceeded_by_more_than_one_second_of_saving(pauses, rate):
    topics = TopicTable()
    topics.put(Topic(1, "t", TopicType.MIXED, 1, release_rate_max=rate))
    backlogs = Backlogs(topics)
    now_ms, went = 0, 0
    rows = _rows([(0, seq) for seq in range(5_000)])
    for pause_ms in pauses:
        now_ms += pause_ms
        went += len(backlogs.admit(rows, np.full(len(rows), 1), now_ms))
        rows = rows[:0]
        assert went <= rate + now_ms * rate / 1000 + 1
    wake_ms = backlogs.next_wake_ms(now_ms)
    assert wake_ms is not None
    assert len(backlogs.admit(rows, np.full(0, 1), wake_ms + 1)) >= 1


# -- clock guard ----------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(-200_000, 200_000)), max_size=40))
def test_releases_are_held_for_ten_seconds_after_each_leap_forward_and_never_else(looks):
    guard, now_ms, boot_ms = ClockGuard(is_simulated=False), 1_000_000, 0
    held_until, is_first = -1, True
    for passed_ms, leap_ms in looks:
        boot_ms += passed_ms
        now_ms += passed_ms + leap_ms
        if leap_ms > LEAP_MS and not is_first:
            held_until = boot_ms + HOLD_MS
        is_first = False
        assert guard.hold_ms(now_ms, boot_ms) == max(0, held_until - boot_ms)


@given(st.lists(st.integers(-(10**9), 10**9), max_size=20))
def test_a_simulated_clock_may_leap_as_it_likes(leaps):
    guard = ClockGuard(is_simulated=True)
    assert all(guard.hold_ms(leap, 0) == 0 for leap in leaps)


# -- lateness -------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 10_000), max_size=50), max_size=20))
def test_lateness_is_the_percentile_of_what_was_recorded(batches):
    lateness = Lateness()
    for batch in batches:
        lateness.record(np.array(batch, np.int64))
    every = [late for batch in batches for late in batch]
    summary = lateness.summary()
    assert summary.count == len(every)
    if every:
        assert summary.max_ms == max(every)
        assert summary.min_ms == min(every)
        assert min(every) <= summary.p50_ms <= summary.p99_ms <= max(every)
        assert abs(summary.p50_ms - np.percentile(every, 50)) <= max(1.0, 0.01 * max(every))


def test_lateness_forgets_the_old_but_not_the_extremes():
    lateness = Lateness()
    lateness.record(np.array([9_999]))
    for _ in range(30):
        lateness.record(np.full(70_000, 3))
    summary = lateness.summary()
    assert (summary.p50_ms, summary.p99_ms, summary.max_ms, summary.min_ms) == (3.0, 3.0, 9_999.0, 3.0)
