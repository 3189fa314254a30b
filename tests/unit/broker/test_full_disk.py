"""A full disk in the middle of a large call: all of it is there, or nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from helpers.small_broker import START_MS, STORE
from tidemill.core.errors import DiskFullError, PartlyStoredError
from tidemill.core.limits import KIB
from tidemill.core.model import Draft, Once

LARGE = 9_000  # more than fits one frame of single sends
STEP = 256 * KIB


@pytest.fixture
def small(make_small):
    """A small broker with more ballast: many messages make many derived rows."""
    return make_small(store=replace(STORE, ballast_bytes=512 * KIB))


def _refused_until_it_fits(small, act) -> int:
    """Let `act` meet disks of growing size; nothing may change until it goes through. How often it failed."""
    used = small.disk.allocated_bytes(small.directory)
    before = small.log_end, small.state()
    for refused in range(1_000):
        small.disk.capacity_bytes = used + refused * STEP
        try:
            act()
        except DiskFullError as full:
            said = full
        else:
            small.disk.capacity_bytes = None
            return refused
        assert type(said) is DiskFullError
        assert "more bytes are needed" in str(said) or "MiB more must be free" in str(said)
        assert (small.log_end, small.state()) == before
        assert small.broker.status().disk_space.is_full
    raise AssertionError("it never went through")


def test_a_send_of_several_frames_is_stored_whole_or_not_at_all(small):
    small.send("t", b"first")
    drafts = [Draft("t", bytes(80), delay_ms=1_000 if i % 3 else None) for i in range(LARGE)]
    assert _refused_until_it_fits(small, lambda: small.broker.send(drafts)) > 3
    small.advance(1_000)
    assert small.broker.status().pending == 0
    assert len(small.in_topic("t")) == LARGE + 1


def test_a_refused_send_makes_no_topic(small):
    small.send("t", b"first")
    drafts = [Draft(f"new-{i % 7}", bytes(80)) for i in range(LARGE)]
    assert _refused_until_it_fits(small, lambda: small.broker.send(drafts)) > 3
    assert len(small.broker.views.topics()) == 8


def test_a_refused_send_replaces_no_time(small):
    small.broker.send([Draft("t", bytes(600), keys=(f"k{i}",), delay_ms=90_000) for i in range(1_500)])
    drafts = [
        *(Draft("t", b"", keys=(f"k{i}",), once=Once.REPLACE, delay_ms=40_000) for i in range(1_500)),
        *(Draft("t", bytes(80), delay_ms=1_000) for _ in range(9_000)),
        Draft("t", b"", keys=("k7",), once=Once.REPLACE, delay_ms=41_000),
        Draft("t", b"", keys=("k7",), once=Once.KEEP, delay_ms=1),
    ]
    receipts = []
    assert _refused_until_it_fits(small, lambda: receipts.extend(small.broker.send(drafts))) > 2
    assert {r.deliver_at_ms - START_MS for r in receipts[:1_500]} == {40_000, 41_000}
    assert receipts[7].handle == receipts[-1].handle == receipts[-2].handle
    assert receipts[-1].deliver_at_ms == START_MS + 41_000
    small.advance(40_999)
    assert len(small.in_topic("t")) == 10_499
    small.advance(1)
    assert len(small.in_topic("t")) == 10_500


def test_a_reschedule_of_many_moves_all_or_none(small):
    table = pa.table({"body": [bytes(900)] * 1_500, "delay_ms": np.arange(1_500) + 60_000})
    small.broker.send_table(table, topic="t")

    def push_on() -> None:
        moved = small.broker.reschedule_where(
            "t", from_ms=START_MS, to_ms=START_MS + 100_000, by_ms=3_600_000
        )
        assert moved == 1_500

    assert _refused_until_it_fits(small, push_on) > 2
    small.advance(3_600_000)
    assert small.bodies("t") == []
    small.advance(65_000)
    assert len(small.bodies("t")) == 1_500


def test_a_table_of_several_frames_is_stored_whole_or_not_at_all(small):
    small.send("t", b"first")
    table = pa.table({"body": [b"x"] * 70_000, "delay_ms": np.full(70_000, 50)})
    assert _refused_until_it_fits(small, lambda: small.broker.send_table(table, topic="new")) > 3
    small.advance(50)
    assert small.broker.status().released == 70_000


def test_when_others_take_the_room_midway_the_table_says_what_is_stored(small):
    table = pa.table({"body": [b"%d" % i for i in range(70_000)], "delay_ms": np.full(70_000, 50)})
    small.broker.topics.create("t")
    store = small.broker.store
    finish = store.finish

    def finish_and_fill_the_disk(appended) -> None:
        finish(appended)
        small.disk.capacity_bytes = small.disk.allocated_bytes(small.directory) - 64 * KIB
        for name in small.disk.names(small.directory / "log"):
            if name.startswith("next"):  # another send took it
                small.broker.store.log.pool.take(small.directory / "log" / "taken", 1, is_reserved=False)
                small.disk.remove(small.directory / "log" / "taken")
        small.disk.capacity_bytes = small.disk.allocated_bytes(small.directory)

    store.finish = finish_and_fill_the_disk
    with pytest.raises(
        PartlyStoredError, match=r"The first 65,536 of 70,000 rows are stored; send the rest"
    ) as said:
        small.broker.send_table(table, topic="t")
    del store.finish
    assert len(said.value.stored) == 65_536
    assert small.broker.status().pending == 65_536
    small.disk.capacity_bytes = None
    small.broker.send_table(table.slice(len(said.value.stored)), topic="t")
    small.advance(50)
    assert sorted(map(int, small.bodies("t"))) == list(range(70_000))


def test_the_status_says_full_from_the_first_refusal_until_there_is_room(small):
    small.send("t", b"first")
    small.disk.capacity_bytes = small.disk.allocated_bytes(small.directory)
    with pytest.raises(DiskFullError, match=r"0\.000 of [\d.]+ MiB are free at .*MiB more must be free"):
        small.send("t", bytes(40_000))
    assert small.broker.status().disk_space.is_full
    small.broker.run_due()
    assert small.broker.status().disk_space.is_full
    small.disk.capacity_bytes = None
    small.clock.advance(1_000)
    small.broker.run_due()
    assert not small.broker.status().disk_space.is_full
