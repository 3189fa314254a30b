"""The stages of a step keep every row, and each does what it says, over arrays of any shape."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from helpers.hypothesis_examples import examples
from tidemill.core.errors import CorruptionError
from tidemill.core.model import PLACEMENTS_MAX
from tidemill.log.disk import RealDisk
from tidemill.store.formats.entry_format import ENTRY
from tidemill.timer.stages.admit import Batch, admit, join, new_batch, placed_again
from tidemill.timer.stages.due import hand_over, split
from tidemill.timer.stages.link import group_by_slot, link
from tidemill.timer.stages.place import Placement, is_due, place
from tidemill.timer.wheel.chains import walk_chains
from tidemill.timer.wheel.timer_log import TimerLog
from tidemill.timer.wheel.timer_log_format import NO_POSITION, UNIT, SegmentLayout, slot_ticks_of
from tidemill.timer.wheel.wheel_format import SLOT

ticks_ms = st.sampled_from([100, 200, 500, 1000])


def entries_of(deliver_at_ms, flags=None):
    rows = np.zeros(len(deliver_at_ms), ENTRY)
    rows["deliver_at_ms"] = deliver_at_ms
    rows["place"] = np.arange(len(rows), dtype=np.uint64) << np.uint64(20)
    rows["size"] = np.arange(len(rows)) + 1
    if flags is not None:
        rows["flags"] = flags
    return rows


@given(st.integers(0, 1000), st.lists(st.integers(0, 7), max_size=60), st.integers(1, 5), st.integers(0, 7))
def test_admit_gives_each_far_row_to_exactly_one_shard(first_seq, flags, shards, skipped):
    rows = entries_of(np.arange(len(flags)), flags)
    seen: list[int] = []
    for number in range(shards):
        batch = admit(rows, first_seq, number, shards, skipped)
        assert (batch.seqs % shards == number).all()
        assert (batch.entries["deliver_at_ms"] == batch.seqs - first_seq).all()
        seen += batch.seqs.tolist()
    assert sorted(seen) == [first_seq + at for at, flag in enumerate(flags) if not flag & skipped]


@given(
    hnp.arrays(np.int64, st.integers(0, 60), elements=st.integers(0, 10**13)),
    st.integers(0, 10**10),
    ticks_ms,
    st.integers(1, 1000),
    st.integers(0, 10**12),
)
def test_place_stays_in_the_window_and_never_after_the_due_slot(deliver_at, open_tick, tick_ms, window, seq):
    seqs = np.arange(seq, seq + len(deliver_at))
    waiting = ~is_due(deliver_at, open_tick, tick_ms)
    deliver_at, seqs = deliver_at[waiting], seqs[waiting]
    placed = place(deliver_at, seqs, open_tick, tick_ms, window)
    assert (placed.slot_ticks >= open_tick).all()
    assert (placed.slot_ticks < open_tick + window).all()
    assert (placed.slot_ticks <= deliver_at // tick_ms).all()
    assert (placed.rolls == (deliver_at // tick_ms >= open_tick + window)).all()
    assert (placed.slot_ticks[~placed.rolls] == deliver_at[~placed.rolls] // tick_ms).all()


@given(st.integers(1, 4), st.integers(0, 10**6))
def test_a_bulk_load_rolls_evenly(shards, first_seq):
    seqs = np.arange(first_seq, first_seq + 40_000 * shards, shards)
    placed = place(np.full(len(seqs), 10**14), seqs, 1000, 1000, 4000)
    _, counts = np.unique(placed.slot_ticks, return_counts=True)
    assert len(counts) == 1000
    assert counts.max() <= 40 + 16


@given(hnp.arrays(np.int64, st.integers(0, 200), elements=st.integers(10**9, 10**9 + 172_800)))
def test_grouping_is_a_stable_sort(slot_ticks):
    groups = group_by_slot(slot_ticks)
    assert groups.order.tolist() == np.argsort(slot_ticks, kind="stable").tolist()
    assert np.repeat(groups.slot_ticks, groups.counts).tolist() == slot_ticks[groups.order].tolist()
    assert groups.starts.tolist() == (np.cumsum(groups.counts) - groups.counts).tolist()


@given(
    st.lists(hnp.arrays(np.int64, st.integers(1, 30), elements=st.integers(0, 5)), min_size=1, max_size=12),
    st.sampled_from([128, 300, 10_000]),
    st.one_of(st.none(), st.integers(1, 40)),
)
@settings(max_examples=examples(60), deadline=None)
def test_linked_units_are_found_again_by_walking(steps, segment_bytes, units_max):
    """Append step after step as the wheel store does, then walk every chain."""
    layout = SegmentLayout(segment_bytes)
    wheel = np.zeros(6, SLOT)
    expected: dict[int, list[int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        log = TimerLog(RealDisk(), Path(folder) / "log", segment_bytes)
        for slot_ticks in steps:
            first = log.end_index
            seqs = np.arange(first, first + len(slot_ticks))
            groups = group_by_slot(slot_ticks)
            batch = new_batch(seqs, entries_of(slot_ticks * 1000))
            placement = Placement(slot_ticks, np.zeros(len(slot_ticks), np.bool_))
            held = wheel[groups.slot_ticks]
            units, slots = link(groups, batch, placement, held, first, 0, 1000, layout)
            log.append(units)
            wheel[groups.slot_ticks] = slots
            assert (slot_ticks_of(units, 1000) == slot_ticks[groups.order]).all()
            for tick, seq in zip(slot_ticks.tolist(), seqs.tolist(), strict=True):
                expected.setdefault(tick, []).append(seq)
        used = sorted(expected)
        assert wheel["num"][used].tolist() == [len(expected[tick]) for tick in used]
        firsts = log.take(layout.indexes_at(wheel["first_pos"][used].astype(np.int64)))
        assert (firsts["prev_pos"] == NO_POSITION).all()
        heads = wheel["last_pos"][used].astype(np.int64)
        indexes, left = walk_chains(log, heads)
        assert not len(left)
        assert sorted(log.seqs(indexes).tolist()) == list(range(log.end_index))
        # In parts: what is left is exactly where the next part goes on.
        head, found = heads[:1], []
        while len(head):
            indexes, head = walk_chains(log, head, units_max)
            found += log.seqs(indexes).tolist()
            assert units_max is None or len(indexes) <= units_max
        assert sorted(found) == expected[used[0]]
        log.close()


def test_chains_of_every_shape_are_walked_whole(tmp_path):
    """One long run, many single units, and units scattered one by one over the log."""
    total = 30_000
    log = TimerLog(RealDisk(), tmp_path / "log", 52 * 7000 + 16)
    shapes = np.concatenate((np.zeros(10_000), np.arange(10_000) + 10, np.tile([1, 2, 3, 4], 2_500)))
    last: dict[int, int] = {}
    prev = []
    positions = log.layout.positions_of(np.arange(total)).tolist()
    for at, chain in enumerate(shapes.astype(int).tolist()):
        prev.append(last.get(chain, NO_POSITION))
        last[chain] = positions[at]
    units = np.zeros(total, UNIT)
    units["prev_pos"] = prev
    units["seq"] = np.arange(total)
    log.append(units)
    indexes, left = walk_chains(log, np.array(list(last.values())))
    assert not len(left)
    assert np.array_equal(np.sort(indexes), np.arange(total))
    log.close()


@given(st.integers(0, 39), st.integers(-5, 60))
@settings(max_examples=examples(60), deadline=None)
def test_a_link_that_leads_nowhere_is_reported_and_never_followed_for_ever(at, wrong_index):
    with tempfile.TemporaryDirectory() as folder:
        log = TimerLog(RealDisk(), Path(folder) / "log", 52 * 10 + 16)
        units = np.zeros(40, UNIT)
        positions = log.layout.positions_of(np.arange(-1, 39))
        units["prev_pos"] = np.where(np.arange(40) == 0, NO_POSITION, positions)
        units["prev_pos"][at] = log.layout.position_of(wrong_index) if wrong_index >= 0 else NO_POSITION
        log.append(units)
        try:
            indexes, _ = walk_chains(log, log.layout.positions_of(np.array([39])))
        except CorruptionError:
            assert wrong_index >= at
        else:
            assert wrong_index < at
            assert len(indexes) == len(np.unique(indexes)) == (39 - at) + max(0, wrong_index + 1) + 1
        log.close()


@given(
    hnp.arrays(np.int64, st.integers(0, 80), elements=st.integers(-(10**6), 10**14)),
    st.integers(0, 10**10),
    ticks_ms,
)
def test_split_keeps_every_timer_and_hand_over_sorts(deliver_at, open_tick, tick_ms):
    batch = new_batch(np.random.default_rng(3).permutation(len(deliver_at)), entries_of(deliver_at))
    due, again = split(batch, open_tick, tick_ms)
    assert sorted(due.seqs.tolist() + again.seqs.tolist()) == list(range(len(deliver_at)))
    assert (due.entries["deliver_at_ms"] < open_tick * tick_ms).all()
    assert (again.entries["deliver_at_ms"] >= open_tick * tick_ms).all()
    both = join(due, again)
    rows, _ = hand_over(both)
    assert rows.tolist() == sorted(
        zip(both.entries["deliver_at_ms"].tolist(), both.seqs.tolist(), strict=True)
    )


def test_hand_over_sorts_when_due_times_and_seqs_do_not_fit_one_integer():
    seqs = np.array([1 << 61, 5, 1 << 61 | 1, 4])
    deliver_at = np.array([1 << 60, 1 << 60, 3, 1 << 60])
    rows, _ = hand_over(new_batch(seqs, entries_of(deliver_at)))
    assert rows.tolist() == sorted(zip(deliver_at.tolist(), seqs.tolist(), strict=True))


@given(st.lists(st.tuples(st.integers(0, 1 << 45), st.integers(0, PLACEMENTS_MAX)), max_size=60))
def test_placements_stay_with_their_timer_through_every_stage(timers):
    deliver_at = np.array([due for due, _ in timers], np.int64)
    placements = np.array([count for _, count in timers], np.uint16)
    batch = Batch(np.random.default_rng(5).permutation(len(timers)), entries_of(deliver_at), placements)
    told = dict(zip(batch.seqs.tolist(), placements.tolist(), strict=True))
    due, again = split(batch, 1 << 30, 1000)
    both = join(again, due)
    rows, handed = hand_over(both)
    assert dict(zip(rows["seq"].tolist(), handed.tolist(), strict=True)) == told
    on = placed_again(both)
    # What was not counted, or cannot be counted any further, stays without a count.
    assert on.placements.tolist() == [
        told[s] + 1 if 0 < told[s] < PLACEMENTS_MAX else 0 for s in both.seqs.tolist()
    ]


def test_placements_stay_with_their_timer_where_a_key_does_not_fit_one_integer():
    seqs, deliver_at = np.array([1 << 61, 5, 1 << 61 | 1]), np.array([1 << 60, 1 << 60, 3])
    rows, placements = hand_over(Batch(seqs, entries_of(deliver_at), np.array([7, 8, 9], np.uint16)))
    assert (rows["seq"].tolist(), placements.tolist()) == ([1 << 61 | 1, 5, 1 << 61], [9, 8, 7])
