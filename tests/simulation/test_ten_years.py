"""One message waits ten simulated years under a steady stream, and does not pin the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.broker.broker import Broker, Sizes
from tidemill.core.config import BrokerSettings
from tidemill.core.limits import DAY_MS
from tidemill.core.model import Draft
from tidemill.store.indexes import IndexSizes
from tidemill.store.message_store import StoreSettings
from tidemill.testing import FaultyDisk, ManualClock
from tidemill.timer.settings import TimerSettings

_START_MS = 1_800_000_000_000
_YEARS_MS = 3_650 * DAY_MS
_RETENTION_MS = 90 * DAY_MS
_STEP_MS = 15 * DAY_MS
_STREAM_PER_STEP = 20
_BODY = b"x" * 200
_SEGMENT_BYTES = 8_192
_BALLAST_BYTES = 64 * 1024


@pytest.mark.slow
def test_a_message_waits_ten_years_and_the_disk_stays_small(tmp_path: Path) -> None:
    clock = ManualClock(_START_MS)
    disk = FaultyDisk(seed=10)
    settings = BrokerSettings(retention_ms=_RETENTION_MS, queues_per_topic=1)
    sizes = Sizes(
        store=StoreSettings(
            segment_bytes=_SEGMENT_BYTES,
            consumer_segment_bytes=4_096,
            ballast_bytes=_BALLAST_BYTES,
            retention_ms=_RETENTION_MS,
            sizes=IndexSizes(entry_chunk_rows=64, queue_chunk_rows=64, find_memory_pairs_max=64),
        ),
        timer=TimerSettings(roll_window_slots=604_800),  # a week: fewer rolls, the test is not about them
    )
    due_ms = _START_MS + _YEARS_MS
    broker = Broker(tmp_path / "data", settings, clock=clock, disk=disk, has_threads=False, sizes=sizes)
    (receipt,) = broker.send([Draft("patient", b"at last", deliver_at_ms=due_ms, id="one")])
    largest = 0
    # The stream ends a while before: the bytes of the patient one are old when it falls due.
    while clock.now_ms() < due_ms - 2 * _RETENTION_MS // 3:
        broker.send(
            [
                Draft("stream", _BODY, delay_ms=None if number % 2 else DAY_MS)
                for number in range(_STREAM_PER_STEP)
            ]
        )
        broker.advance_to(clock.now_ms() + _STEP_MS)
        broker.run_due()
        largest = max(largest, broker.store.log.written_end - broker.store.log.head)
        assert broker.views.read("patient", 0, 0, 10) == []

    # What the retention keeps, twice what is alive, and a segment at either end.
    stream_bytes = _RETENTION_MS // _STEP_MS * _STREAM_PER_STEP * (len(_BODY) + 250)
    assert largest < stream_bytes + 2 * 500 + 3 * _SEGMENT_BYTES
    everything = disk.allocated_bytes(tmp_path / "data" / "log")
    assert everything < stream_bytes + 2 * 500 + 5 * _SEGMENT_BYTES
    assert broker.store.log.head > 10 * largest

    (moved,) = broker.views.pending(topic_name="patient")
    assert (moved.id, moved.deliver_at_ms) == ("one", due_ms)
    assert receipt.handle is not None
    assert moved.seq > receipt.handle.seq  # it was moved
    broker.advance_to(due_ms - 1)
    assert broker.views.read("patient", 0, 0, 10) == []
    old_place = int(broker.store.entry(moved.seq)["place"])
    assert old_place >> 16 < broker.store.value_below(due_ms)  # its bytes are old, so they go along
    broker.advance_to(due_ms)
    topic = broker.topics.require("patient")
    (row,) = broker.store.queues.read((topic.id, 0), 0, 10)
    assert int(row["place"]) > old_place
    (released,) = broker.views.read("patient", 0, 0, 10)
    assert (released.message.body, released.released_at_ms) == (b"at last", due_ms)
    broker.advance_to(due_ms + _STEP_MS)
    assert len(broker.views.read("patient", 0, 0, 10)) == 1
    assert broker.check(tmp_path / "scratch") == []
    broker.close()
    disk.close()
