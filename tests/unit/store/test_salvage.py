"""Salvage of a damaged commit log: what is copied, what is reported, for each kind of frame."""

from __future__ import annotations

import json
import os

import pytest

from small_broker import STORE, SmallBroker
from tidemill.broker.salvage import MESSAGES_NAME, REPORT_NAME, salvage
from tidemill.core.errors import CorruptionError
from tidemill.core.model import CancelAnswer, Draft
from tidemill.log.disk import RealDisk
from tidemill.store.frames import Kind

HOUR_MS = 3_600_000


@pytest.fixture
def small(tmp_path):
    return SmallBroker(tmp_path / "data", queues_per_topic=1)


def frames(small, kind):
    log = small.broker.store.log
    return [frame for frame in log.frames(log.head, log.written_end) if frame.kind == kind]


def damage(small, *damaged):
    """Flip a byte in each of these frames of a stopped broker."""
    starts = sorted(int(path.stem) for path in (small.directory / "log").glob("*.log"))
    for frame in damaged:
        start = max(start for start in starts if start <= frame.offset)
        fd = os.open(small.directory / "log" / f"{start:020d}.log", os.O_RDWR)
        at = frame.offset - start + 41
        byte = os.pread(fd, 1, at)
        os.pwrite(fd, bytes([byte[0] ^ 0x10]), at)
        os.close(fd)


def salvaged(small, **arguments):
    """Salvage the stopped broker's directory and open the copy; returns the report and the copy."""
    target = small.directory.parent / "new"
    before = {path: path.read_bytes() for path in small.directory.rglob("*") if path.is_file()}
    report = salvage(small.directory, target, RealDisk(), small.clock.now_ms(), lambda *_: None, STORE)
    assert {path: path.read_bytes() for path in small.directory.rglob("*") if path.is_file()} == before
    assert json.loads((target / REPORT_NAME).read_text())["pending"] == report.pending
    copy = SmallBroker(target, clock=small.clock, queues_per_topic=1)
    copy.check()
    return report, copy


def listed(copy):
    return [json.loads(line) for line in (copy.directory / MESSAGES_NAME).read_text().splitlines()]


def test_an_undamaged_log_is_copied_whole(small):
    small.broker.send([Draft("t", b"%d" % i, delay_ms=1000 * i, keys=("k",)) for i in range(50)])
    small.broker.send([Draft("u", b"%d" % i) for i in range(50)])
    small.advance(20_000)
    small.close()
    state_before = SmallBroker(small.directory, clock=small.clock, queues_per_topic=1)
    before = state_before.state()
    state_before.close()
    report, copy = salvaged(small)
    assert report.is_whole
    assert copy.state() == before
    copy.close()


def test_a_damaged_frame_of_messages_is_missing_and_all_else_is_there(small):
    receipts = [small.send("t", b"%d" % i, delay_ms=HOUR_MS) for i in range(5)]
    small.kill()
    damage(small, frames(small, Kind.MESSAGES)[2])
    with pytest.raises(CorruptionError, match="tidemill salvage"):
        small.open()
    report, copy = salvaged(small)
    assert not report.is_whole
    (region,) = report.regions
    assert region.seqs == [(2, 3)]
    assert copy.broker.cancel([receipts[2].handle])[0] is CancelAnswer.UNKNOWN
    assert copy.broker.cancel([receipts[3].handle])[0] is CancelAnswer.CANCELLED
    copy.advance(HOUR_MS + 1000)
    assert copy.bodies("t") == [b"0", b"1", b"4"]
    copy.check()
    copy.close()
