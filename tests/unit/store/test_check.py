"""The checker finds what is wrong: every teardown of these tests relies on it."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from helpers.small_broker import SmallBroker
from tidemill.core.errors import DamagedFrameError
from tidemill.core.model import Draft
from tidemill.log.disk import RealDisk
from tidemill.store.check import check_store
from tidemill.store.formats.frames import RELEASE_GROUP, Kind, Release
from tidemill.store.formats.queue_format import QUEUE_ROW
from tidemill.store.formats.row_check import salts_of, seal
from tidemill.store.ledger import State


@pytest.fixture
def worked(tmp_path):
    """A broker that did something of everything, and no check at the end: the tests break it."""
    small = SmallBroker(tmp_path / "data", queues_per_topic=1)
    small.broker.send([Draft("t", b"%d" % i, delay_ms=1_000 * (i + 1), keys=("k",)) for i in range(10)])
    small.broker.send([Draft("u", b"direct")] * 3)
    small.advance(3_000)
    small.broker.receive("t", "g", count=2)
    small.broker.cancel_where("t", key="nothing")
    small.check()
    yield small
    small.broker.store.release_files()


def _findings(small, tmp_path):
    found = check_store(small.broker.store, RealDisk(), tmp_path / "scratch")
    shutil.rmtree(tmp_path / "scratch")
    return found


def _flip_state(small):
    small.broker.store.ledger.settle(np.array([8]), State.CANCELLED)


def _forget_a_seq(small):
    small.broker.store.ledger.next_seq -= 1


def _change_an_entry(small):
    row = small.broker.store.entries.take(np.array([5]))
    row["deliver_at_ms"] += 1
    small.broker.store.entries.write(5, row)


def _miscount(small):
    small.broker.store.due_counts.add(np.array([1], np.uint32), np.array([0]), 1)


def _misname(small):
    small.broker.store.topics.next_topic_id += 1


def _lose_a_queue_row(small):
    row = np.zeros(1, QUEUE_ROW)
    row["place"] = 77 << 16
    seal(row, salts_of(np.array([1]), 1 << 16))  # it passes its check, and yet is not what the log says
    small.broker.store.queues._table((1, 0)).write(1, row)


def _lengthen_a_queue(small):
    small.broker.store.queues.set_end((1, 0), 9)


def _forget_a_key(small):
    find = small.broker.store.find
    find.drain()
    find._files = []


def _consume_the_future(small):
    progress = small.broker.store.consumers.state.progress((1, 1, 0))
    progress.next_offset = 99


def _open_a_half(small):
    small.broker.store.open_transactions["1:x"] = None


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (_flip_state, "seq 8 is CANCELLED in the ledger, PENDING in the log"),
        (_forget_a_seq, "the ledger goes up to seq 9, the log up to 10"),
        (_change_an_entry, "entries between seq"),
        (_miscount, "counts of what is due"),
        (_misname, "topics, queue offsets or totals"),
        (_lose_a_queue_row, "rows that differ"),
        (_lengthen_a_queue, "ends at 9, the log says 3"),
        (_forget_a_key, "not in the find index"),
        (_consume_the_future, "group g is at 99 of queue 0, which ends at 3"),
        (_open_a_half, "open transactions"),
    ],
)
def test_damage_is_found_and_named(worked, tmp_path, damage, text):
    damage(worked)
    findings = _findings(worked, tmp_path)
    assert findings
    assert text in " ".join(findings)


@pytest.mark.parametrize(
    ("seqs", "stamp_after_ms", "first_offset", "text"),
    [
        ([9], 0, 3, "came before the time of seq 9"),
        ([9, 9], 60_000, 3, "names a seq twice"),
        ([9], 60_000, 5, "at 5, expected 3"),
        ([0], 60_000, 3, "names a message that was not pending"),
    ],
)
def test_a_wrong_release_in_the_log_is_found(worked, tmp_path, seqs, stamp_after_ms, first_offset, text):
    groups = np.array([(1, 0, 0, first_offset, len(seqs))], RELEASE_GROUP)
    via = np.ones(len(seqs), np.uint8)
    placements = np.ones(len(seqs), np.uint16)
    frame = Release(groups, np.array(seqs), via, placements, np.empty(0, np.uint32), None)
    worked.broker.store.log.append(Kind.RELEASE, frame.parts(), worked.clock.now_ms() + stamp_after_ms)
    findings = _findings(worked, tmp_path)
    assert text in " ".join(findings)


def test_a_bad_checksum_is_found(worked, tmp_path):
    (offset, *_rest) = [
        frame.offset
        for frame in worked.broker.store.log.frames(0, worked.log_end)
        if frame.kind == Kind.MESSAGES
    ]
    with (worked.directory / "log" / f"{0:020d}.log").open("r+b") as file:
        file.seek(offset + 100)
        file.write(b"!")
    with pytest.raises(DamagedFrameError, match=f"offset {offset} .*tidemill salvage"):
        _findings(worked, tmp_path)
