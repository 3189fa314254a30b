"""Topics: made, paused, limited, deleted; and what people see of them."""

from __future__ import annotations

import pytest

from helpers.small_broker import START_MS
from tidemill.core.errors import TopicInUseError, UnknownTopicError
from tidemill.core.model import Draft, TopicType


def test_a_topic_made_again_with_the_same_properties_is_the_same(small):
    first = small.broker.topics.create("t", TopicType.DELAY, 3)
    end = small.log_end
    assert small.broker.topics.create("t", TopicType.DELAY) == first
    assert small.broker.topics.create("t", TopicType.DELAY, 3) == first
    assert small.log_end == end


def test_a_paused_topic_holds_its_due_messages_and_lets_them_go_in_order(small):
    for i in range(4):
        small.send("t", b"%d" % i, delay_ms=1_000 - i)
    small.send("far", b"far", delay_ms=100_000)
    small.broker.topics.change("t", is_paused=True)
    small.broker.topics.change("far", is_paused=True)
    small.advance(200_000)
    assert small.bodies("t") == small.bodies("far") == []
    assert small.broker.status().backlog == 5
    small.send("t", b"direct")
    assert small.bodies("t") == [b"direct"]
    small.kill_and_open()
    small.advance(1_000)
    assert small.broker.topics.require("t").is_paused
    assert small.broker.status().pending == 5
    small.broker.topics.change("t", is_paused=False)
    small.broker.run_due()
    rows = [m for m in small.in_topic("t") if m.body != b"direct"]
    assert sorted(m.body for m in rows) == [b"0", b"1", b"2", b"3"]
    assert {m.released_at_ms for m in rows} == {START_MS + 201_000}
    for queue_id in (0, 1):
        due = [m.deliver_at_ms for m in rows if m.queue_id == queue_id]
        assert due == sorted(due)
    assert small.bodies("far") == []
    small.broker.topics.change("far", is_paused=False)
    small.broker.run_due()
    assert small.bodies("far") == [b"far"]


def test_messages_cancelled_while_their_topic_is_paused_stay_away(small):
    receipts = [small.send("t", b"%d" % i, delay_ms=1_000) for i in range(3)]
    small.broker.topics.change("t", is_paused=True)
    small.advance(2_000)
    small.broker.cancel([receipts[1].handle])
    small.broker.topics.change("t", is_paused=False)
    small.broker.run_due()
    assert sorted(small.bodies("t")) == [b"0", b"2"]


def test_a_rate_limit_spreads_a_topic_and_holds_up_no_other(small):
    small.broker.send([Draft("slow", b"%02d" % i, delay_ms=1_000) for i in range(40)])
    small.broker.send([Draft("quick", b"%d" % i, delay_ms=1_000) for i in range(40)])
    small.broker.topics.change("slow", release_rate_max=10)
    small.advance(1_000)
    assert len(small.bodies("quick")) == 40
    assert len(small.bodies("slow")) == 10
    small.advance(1_000)
    assert len(small.bodies("slow")) == 20
    small.advance(2_000)
    rows = small.in_topic("slow")
    assert len(rows) == 40
    late = sorted(m.released_at_ms - START_MS for m in rows)
    assert late[10] == 1_100
    assert late[-1] == 4_000
    assert [m.body for m in sorted(rows, key=lambda m: (m.released_at_ms, m.body))] == [
        b"%02d" % i for i in range(40)
    ]


def test_a_topic_is_not_deleted_while_messages_wait_unless_forced(small):
    small.send("t", b"soon", delay_ms=1_000)
    small.send("t", b"later", delay_ms=90_000)
    with pytest.raises(TopicInUseError, match="2 messages wait"):
        small.broker.topics.delete("t")
    assert small.broker.topics.delete("t", is_forced=True) == 2
    with pytest.raises(UnknownTopicError):
        small.broker.topics.require("t")
    small.advance(100_000)
    assert small.broker.status().released == 0
    assert small.broker.status().cancelled == 2


def test_a_topic_made_after_a_delete_is_empty_and_has_an_id_of_its_own(small):
    small.broker.send([Draft("t", b"old"), Draft("t", b"old")])
    old = small.broker.topics.require("t")
    small.broker.receive("t", "g")
    assert small.broker.topics.delete("t") == 0
    small.send("t", b"new")
    small.kill_and_open()
    new = small.broker.topics.require("t")
    assert new.id > old.id
    assert small.bodies("t") == [b"new"]
    assert [d.message.body for d in small.broker.receive("t", "g")] == [b"new"]
    small.broker.topics.delete("t")
    small.reopen()
    assert small.broker.topics.create("u").id > new.id


def test_pending_shows_what_waits_earliest_first(small):
    for i in (3, 1, 2):
        small.send("a", b"x" * i, delay_ms=i * 1_000, keys=(f"k{i}", "all"), tag="t", id=f"i{i}")
    small.send("b", delay_ms=1_500, keys=("all",))
    pending = small.broker.views.pending
    assert [p.id for p in pending(topic_name="a")] == ["i1", "i2", "i3"]
    assert [p.topic for p in pending()] == ["a", "b", "a", "a"]
    assert [p.id for p in pending(topic_name="a", key="all", limit=2)] == ["i1", "i2"]
    assert [p.topic for p in pending(key="all")] == ["a", "b", "a", "a"]
    assert [p.id for p in pending(topic_name="a", from_ms=START_MS + 2_000, to_ms=START_MS + 3_000)] == ["i2"]
    (one,) = pending(topic_name="a", key="k3")
    assert (one.keys, one.tag, one.stored_at_ms, one.deliver_at_ms) == (
        ("k3", "all"),
        "t",
        START_MS,
        START_MS + 3_000,
    )
    assert one.size > 3
    assert small.broker.cancel([one.handle]) == ["cancelled"]
    assert pending(key="k3") == []


def test_pending_finds_the_earliest_of_many(small):
    dues = [(i * 7919) % 1_000 for i in range(300)]
    small.broker.send([Draft("a", b"", delay_ms=60_000 + due) for due in dues])
    assert [p.deliver_at_ms - START_MS - 60_000 for p in small.broker.views.pending(limit=7)] == sorted(dues)[
        :7
    ]


def test_the_forecast_counts_by_minute_and_overdue_ones_now(small):
    minute = START_MS // 60_000 * 60_000
    for offset in (0, 59_999, 60_000, 179_999):
        small.send("a", deliver_at_ms=minute + 600_000 + offset)
    small.send("b", deliver_at_ms=minute + 600_000)
    small.broker.topics.change("b", is_paused=True)
    forecast = dict(small.broker.views.forecast(topic_name="a", horizon_ms=780_000))
    assert len(forecast) == 13
    assert {at - minute: n for at, n in forecast.items() if n} == {600_000: 2, 660_000: 1, 720_000: 1}
    small.broker.advance_to(minute + 660_000)
    overall = small.broker.views.forecast(horizon_ms=60_000)
    assert overall == [(minute + 660_000, 1)]


def test_the_forecast_reaches_to_the_horizon_in_the_middle_of_a_minute(small):
    minute = START_MS // 60_000 * 60_000
    small.broker.advance_to(minute + 90_000)
    small.send("a", delay_ms=59_999)
    assert small.broker.views.forecast(horizon_ms=60_000) == [(minute + 60_000, 0), (minute + 120_000, 1)]


def test_status_adds_up(small):
    small.broker.send([Draft("a", b"", delay_ms=1_000 * i) for i in range(1, 11)])
    small.send("a", b"direct")
    far = small.send("b", delay_ms=500_000)
    small.broker.cancel([far.handle])
    small.advance(4_000)
    status = small.broker.status()
    assert (status.sent, status.released, status.cancelled, status.pending) == (12, 4, 1, 6)
    assert (status.near, status.lateness_ms.count, status.lateness_ms.max_ms) == (6, 4, 0.0)
    assert status.pipeline.runner == "embedded"
    assert not status.disk_space.is_full
    (a, b) = small.broker.views.topics()
    assert (a.sent, a.released, a.pending, a.visible) == (11, 4, 6, 5)
    assert (b.sent, b.cancelled, b.visible) == (1, 1, 0)


def test_a_message_is_found_by_key_wherever_it_is(small):
    small.send("a", b"direct", keys=("k",))
    small.clock.advance(1)
    small.send("a", b"waits", delay_ms=90_000, keys=("k",))
    small.clock.advance(1)
    moved = small.send("a", b"moved", delay_ms=90_000, keys=("k",))
    small.broker.reschedule([moved.handle], by_ms=5)
    found = [found.message.body for found in small.broker.views.find("a", "k")]
    assert sorted(found) == [b"direct", b"moved", b"waits"]
    assert small.broker.views.find("a", "other") == []
