"""Delay levels: queues of their own, order kept, one pass for all, a table that may change."""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
import pytest

from helpers.small_broker import START_MS
from tidemill.broker.send import plan as plan_module
from tidemill.core.errors import IllegalLevelError, RequestError
from tidemill.core.model import CancelAnswer, Draft, Via


def _levels(small) -> dict[int, tuple[int, int | None, int]]:
    return {
        view.level: (view.waiting, view.next_due_ms, view.lag_ms)
        for view in small.broker.status().levels
        if view.waiting
    }


def test_a_level_message_arrives_after_its_delay_not_before_and_by_its_level_queue(small):
    receipt = small.send("t", b"five", level=5)
    assert receipt.deliver_at_ms == START_MS + 60_000
    assert receipt.note == ""
    small.advance(59_999)
    assert small.bodies("t") == []
    small.advance(1)
    (arrived,) = small.in_topic("t")
    assert (arrived.body, arrived.released_at_ms, arrived.via) == (b"five", START_MS + 60_000, Via.LEVEL)


def test_level_zero_is_none_above_the_highest_is_clamped_with_a_note_and_negative_is_refused(small):
    assert small.send("t", level=0).handle is None
    receipt = small.send("t", level=1_000_000)
    assert receipt.deliver_at_ms == START_MS + 7_200_000
    assert receipt.note == "level 1000000 is above the highest, 18 was used"
    with pytest.raises(IllegalLevelError, match="negative"):
        small.send("t", level=-1)
    with pytest.raises(RequestError, match="level"):
        small.send("t", level="3")


def test_what_waits_is_shown_by_level_with_its_next_due_time_and_lag(small):
    small.send("held", level=1)
    small.send("t", level=1)
    small.send("t", level=3)
    assert _levels(small) == {1: (2, START_MS + 1_000, 0), 3: (1, START_MS + 10_000, 0)}
    small.broker.topics.change("held", is_paused=True)
    small.advance(4_000)
    assert _levels(small) == {1: (1, START_MS + 1_000, 3_000), 3: (1, START_MS + 10_000, 0)}
    small.broker.topics.change("held", is_paused=False)
    small.advance(1)
    assert _levels(small) == {3: (1, START_MS + 10_000, 0)}


def test_cancel_and_reschedule_take_a_message_out_of_its_level(small):
    first, second = small.send("t", b"a", level=5).handle, small.send("t", b"b", level=5).handle
    assert small.broker.cancel([first]) == [CancelAnswer.CANCELLED]
    assert _levels(small)[5][0] == 1
    (moved,) = small.broker.reschedule([second], by_ms=60_000)
    assert _levels(small) == {}
    small.advance(60_000)
    assert small.bodies("t") == []
    small.advance(60_000)
    assert small.bodies("t") == [b"b"]
    assert moved.deliver_at_ms == START_MS + 120_000


def test_order_inside_a_level_is_kept_and_levels_are_let_go_together(make_small):
    small = make_small(queues_per_topic=1)
    for round_number in range(10):
        small.broker.send([Draft("t", b"%d-%d" % (level, round_number), level=level) for level in (3, 1, 2)])
        small.clock.advance(100)
    small.advance(60_000)
    bodies = small.bodies("t")
    for level in (1, 2, 3):
        assert [b for b in bodies if b.startswith(b"%d-" % level)] == [
            b"%d-%d" % (level, i) for i in range(10)
        ]


def test_a_paused_and_a_limited_topic_hold_up_no_other_topic_of_the_same_level(small):
    for topic in ("free", "paused", "slow"):
        small.broker.send([Draft(topic, b"%d" % i, level=2) for i in range(20)])
    small.broker.topics.change("paused", is_paused=True)
    small.broker.topics.change("slow", release_rate_max=5)
    small.clock.advance(5_000)
    small.broker.run_due()
    assert [len(small.bodies(topic)) for topic in ("free", "paused", "slow")] == [20, 0, 5]
    small.advance(10_000)
    small.broker.topics.change("paused", is_paused=False)
    small.advance(1)
    assert [len(small.bodies(topic)) for topic in ("free", "paused", "slow")] == [20, 20, 20]


def test_a_change_of_the_table_neither_loses_nor_retimes_what_waits(make_small):
    small = make_small(levels="10s 1m")
    small.send("t", b"old-1", level=1)
    small.send("t", b"old-2", level=2)
    small.reopen(levels="1m 5s 2h")
    assert _levels(small) == {0: (1, START_MS + 10_000, 0), 1: (1, START_MS + 60_000, 0)}
    small.send("t", b"new-2", level=2)
    small.advance(5_000)
    assert small.bodies("t") == [b"new-2"]
    small.advance(5_000)
    assert small.bodies("t") == [b"new-2", b"old-1"]
    small.advance(50_000)
    assert small.bodies("t") == [b"new-2", b"old-1", b"old-2"]


def test_a_start_without_a_table_goes_on_with_the_last_one(make_small, caplog):
    small = make_small(levels="7s 8s")
    with caplog.at_level(logging.INFO, "tidemill.broker.level_table"):
        small.reopen(levels="")
        assert small.broker.settings.level_delays_ms == (7_000, 8_000)
        assert caplog.text == ""
        small.reopen(levels="9s")
    assert "pending messages keep their due time" in caplog.text
    small.kill_and_open(power_cut=True)
    assert small.broker.settings.level_delays_ms == (9_000,)


@pytest.mark.parametrize("deleted", ["", "index", "timer"])
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_level_queues_are_found_again_after_a_crash(small, deleted, has_checkpoint):
    handles = [small.send("t", b"%d" % i, level=1 + i % 4).handle for i in range(40)]
    small.broker.cancel(handles[:3])
    if has_checkpoint:
        small.broker.store.checkpoint()
    small.send("t", b"last", level=4)
    before = _levels(small)
    small.kill(power_cut=not deleted)
    if deleted:
        small.delete(deleted)
    small.open()
    assert _levels(small) == before
    small.advance(1_000)
    small.kill_and_open()
    small.advance(29_000)
    assert len(small.bodies("t")) == 38
    assert {row.via for row in small.in_topic("t")} == {Via.LEVEL}


def test_a_checkpoint_remembers_where_the_waiting_ones_begin(small):
    small.broker.send([Draft("t", b"", level=1) for _ in range(50)])
    small.send("t", b"late", level=18)
    small.advance(1_000)
    small.broker.store.checkpoint()
    indexes = small.broker.store.indexes
    assert indexes.level_floor == indexes.ledger.next_seq - 1
    small.kill_and_open(power_cut=True)
    assert _levels(small)[18][0] == 1


def test_the_clock_set_back_begins_a_new_run_and_loses_nothing(small):
    small.send("t", b"before", level=5)
    small.clock.leap_ms(-30_000)
    small.send("t", b"after", level=5)
    small.advance(60_000)
    assert small.bodies("t") == [b"after"]
    small.advance(30_000)
    assert small.bodies("t") == [b"after", b"before"]


def test_levels_outlive_retention(small):
    small.send("t", b"long", level=18)
    for _ in range(4):
        small.fill_segment()
        small.advance(1_800_000)
        small.broker._maintenance.retain(small.clock.now_ms())
    assert small.broker.store.log.head > 0
    assert small.bodies("t") == [b"long"]


def test_when_the_level_queues_are_full_the_pipeline_takes_the_rest(small, monkeypatch):
    monkeypatch.setattr(plan_module, "LEVEL_WAITING_MAX", 3)
    for number in range(6):
        small.send("t", b"%d" % number, level=5)
    assert _levels(small)[5][0] == 3
    table = pa.table({"topic": ["t"] * 4, "body": [b"x"] * 4, "level": pa.array([5] * 4, pa.int32())})
    small.broker.send_table(table)
    assert _levels(small)[5][0] == 3
    small.advance(60_000)
    assert [row.released_at_ms for row in small.in_topic("t")] == [START_MS + 60_000] * 10


@pytest.mark.parametrize("commits_in_flight", [1, 2, 8])
def test_a_burst_larger_than_one_record_leaves_in_order(make_small, commits_in_flight):
    small = make_small(queues_per_topic=1, release_rows_max=7, commits_in_flight=commits_in_flight)
    for number in range(30):
        small.send("t", b"%d" % number, level=1 + number % 3)
    small.clock.advance(60_000)
    small.broker.run_due()
    rows = small.in_topic("t")
    assert [(r.deliver_at_ms, int(r.body)) for r in rows] == sorted(
        (r.deliver_at_ms, int(r.body)) for r in rows
    )
    assert len(rows) == 30


def test_a_table_of_rows_goes_to_the_same_queues(small):
    levels = np.arange(200) % 20
    table = pa.table(
        {"topic": ["t"] * 200, "body": [b"%d" % i for i in range(200)], "level": pa.array(levels, pa.int32())}
    )
    receipt = small.broker.send_table(table)
    assert sum(view.waiting for view in small.broker.status().levels) == 190
    assert (receipt.deliver_at_ms[levels == 5] == START_MS + 60_000).all()
    assert (receipt.deliver_at_ms[levels == 19] == START_MS + 7_200_000).all()
    small.advance(60_000)
    assert len(small.bodies("t")) == 10 + 50
