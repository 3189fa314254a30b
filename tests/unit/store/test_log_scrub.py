"""The scrub finds damage that is not read, and finds it again after a restart."""

from __future__ import annotations

import pytest

from helpers.log_damage import damage_frame, damage_message, place_in_queue
from helpers.small_broker import SmallBroker
from tidemill.core.limits import DAY_MS
from tidemill.store.damaged_messages import DamageCounts, damage_counts, damaged_messages
from tidemill.store.upkeep.log_scrub import LogScrub

HOUR_MS = 3_600_000


@pytest.fixture
def small(tmp_path):
    small = SmallBroker(tmp_path / "data", queues_per_topic=1, retention_ms=100 * DAY_MS)
    yield small
    small.close()


def counts(small):
    return damage_counts(small.broker.store)


def test_a_whole_log_has_no_damage(small):
    for i in range(40):
        small.send("t", bytes(1000), delay_ms=i * HOUR_MS)
    LogScrub(small.broker.store).run()
    assert counts(small) == DamageCounts()


def test_it_finds_every_damaged_frame_also_neighbours_and_after_a_restart(small):
    for i in range(10):
        small.send("t", b"%d" % i, delay_ms=HOUR_MS)
    for i in range(3):
        small.send("t", b"at once %d" % i)
    for seq in (2, 3, 4, 8):
        damage_message(small, seq)
    damage_frame(small, place_in_queue(small, "t", 0, 1) >> 16)
    small.broker.run_due()
    assert counts(small) == DamageCounts(frames=5, messages=5, pending=4)
    small.reopen()
    assert counts(small) == DamageCounts()
    small.broker.run_due()
    assert counts(small) == DamageCounts(frames=5, messages=5, pending=4)
    found = [(m.state, m.seq, m.offset) for m in damaged_messages(small.broker.store)]
    assert found == [("pending", s, -1) for s in (2, 3, 4, 8)] + [("sent", -1, 1)]


def test_a_damaged_header_hides_the_next_frames_from_no_one(small):
    for i in range(4):
        small.send("t", b"%d" % i, delay_ms=HOUR_MS)
    damage_message(small, 1, at=8, content=b"\xff\xff\xff\x7f")  # its length
    LogScrub(small.broker.store).run()
    assert [m.seq for m in damaged_messages(small.broker.store)] == [1]


def test_a_damaged_record_is_a_damaged_frame_without_messages(small):
    receipt = small.send("t", b"x", delay_ms=HOUR_MS)
    at = small.log_end
    small.broker.cancel([receipt.handle])
    small.send("t", b"y")
    damage_frame(small, at)
    LogScrub(small.broker.store).run()
    assert counts(small) == DamageCounts(frames=1)


def test_it_goes_a_bounded_part_at_a_time_and_once_a_day(small, monkeypatch):
    monkeypatch.setattr("tidemill.store.upkeep.log_scrub._STEP_FRAMES", 3)
    for i in range(10):
        small.send("t", b"%d" % i, delay_ms=DAY_MS * 9)
    scrub = LogScrub(small.broker.store)
    damage_message(small, 9)
    for step in range(3):
        scrub.step(step)
        assert counts(small).frames == 0
    scrub.step(3)
    assert counts(small).frames == 1
    damage_message(small, 0)
    for step in range(10):
        scrub.step(DAY_MS - 1 - step)
    assert counts(small).frames == 1
    scrub.step(DAY_MS)
    assert counts(small).frames == 2


def test_bytes_of_a_damaged_frame_end_where_the_next_one_begins(small):
    for i in range(3):
        small.send("t", b"body %d" % i, delay_ms=HOUR_MS)
    log = small.broker.store.log
    place = int(small.broker.store.entry(1)["place"]) >> 16
    end = log.frame(place).end
    damage_message(small, 1)
    assert len(log.damaged_bytes(place)) == end - place
    assert log.damaged_bytes(place).startswith(b"TMFR")
