"""Entries and queue rows that are damaged on disk: derived again from the log, reported, never acted on."""

from __future__ import annotations

import logging
import os
import tarfile
from pathlib import Path

import pytest

from helpers.small_broker import START_MS, SmallBroker
from tidemill.core.errors import CorruptionError, NewerFormatError
from tidemill.core.model import CancelAnswer, Draft
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import RealDisk
from tidemill.store.damage import Derived
from tidemill.store.formats.entry_format import ENTRY
from tidemill.store.formats.queue_format import QUEUE_ROW
from tidemill.store.index_checkpoint import INDEX_FORMAT
from tidemill.testing import FaultyDisk

GOLDEN = Path(__file__).parents[2] / "golden" / "data-directory-1.tar.gz"
DUE = ENTRY.fields["deliver_at_ms"][1]
HOUR_MS = 3_600_000


@pytest.fixture
def small(tmp_path):
    small = SmallBroker(tmp_path / "data", queues_per_topic=1)
    small.broker.send(
        [Draft("t", b"%d" % i, delay_ms=HOUR_MS + 1_000 * i, keys=(f"k{i}",)) for i in range(100)]
    )
    yield small
    small.check()
    small.close()


def entry_file(small, seq):
    chunk_rows = small.store_settings.sizes.entry_chunk_rows
    return small.directory / "index" / "entries" / f"{seq // chunk_rows * chunk_rows:020d}"


def overwrite(path, at, content):
    fd = os.open(path, os.O_WRONLY)
    os.pwrite(fd, content, at)
    os.close(fd)


def set_due(small, seq, due_ms):
    """Move a due time on disk, as a flipped bit would."""
    path = entry_file(small, seq)
    at = seq % small.store_settings.sizes.entry_chunk_rows * ENTRY.itemsize + DUE
    overwrite(path, at, due_ms.to_bytes(8, "little"))


def stop(small):
    """End the broker so that opening it again replays nothing."""
    small.broker.store.checkpoint()
    small.kill()


def repaired(small, kind=Derived.ENTRIES):
    return small.broker.store.repairs.counts()[kind]


def bodies(small, topic="t"):
    return [row.body for row in small.in_topic(topic)]


def test_a_due_time_moved_earlier_on_disk_releases_nothing_early(small, caplog):
    stop(small)
    set_due(small, 7, START_MS)
    small.open()
    with caplog.at_level(logging.ERROR):
        small.advance(HOUR_MS - 1)
    assert bodies(small) == []
    small.advance(8_000)
    assert b"7" in bodies(small)
    assert repaired(small) == 1
    (record,) = [r for r in caplog.records if "damage" in r.getMessage()]
    assert str(entry_file(small, 7)) in record.getMessage()
    assert "seqs 7 to 7" in record.getMessage()


def test_a_page_of_zeros_loses_nothing(small):
    stop(small)
    overwrite(entry_file(small, 0), 0, bytes(ENTRY.itemsize * 40))
    small.open()
    small.advance(HOUR_MS + 200_000)
    assert bodies(small) == [b"%d" % i for i in range(100)]
    assert repaired(small) == 40


@pytest.mark.parametrize("length", [0, 1, ENTRY.itemsize * 10 + 5])
def test_a_truncated_file_is_made_whole(small, length):
    stop(small)
    os.truncate(entry_file(small, 70), length)
    small.open()
    assert len(small.broker.views.pending(limit=1000)) == 100
    small.advance(HOUR_MS + 200_000)
    assert bodies(small) == [b"%d" % i for i in range(100)]
    assert repaired(small) == 36 - length // ENTRY.itemsize


def test_a_missing_file_is_made_again(small):
    stop(small)
    entry_file(small, 0).unlink()
    small.open()
    assert [p.deliver_at_ms for p in small.broker.views.pending(limit=1000)] == [
        START_MS + HOUR_MS + 1_000 * i for i in range(100)
    ]
    assert repaired(small) == 64


def test_damage_under_a_running_broker_does_not_change_the_answer_to_a_cancel(small):
    handle = small.broker.views.pending(limit=1)[0].handle
    overwrite(entry_file(small, 0), 0, bytes(4_096 // ENTRY.itemsize * ENTRY.itemsize // 2))
    assert small.broker.cancel([handle]) == [CancelAnswer.CANCELLED]
    assert small.broker.cancel_where("t", key="k3") == 1
    small.advance(HOUR_MS + 200_000)
    assert len(bodies(small)) == 98


def test_swapped_rows_are_found(small):
    stop(small)
    path = entry_file(small, 0)
    content = path.read_bytes()
    size = ENTRY.itemsize
    overwrite(path, 0, content[size : 2 * size] + content[:size])
    small.open()
    small.advance(HOUR_MS + 500)
    assert bodies(small) == []  # the timer has the time of the other row, and nothing comes early
    assert repaired(small) >= 1
    small.advance(1_000)
    assert sorted(bodies(small)) == [b"0", b"1"]


def test_queue_rows_are_derived_again_whatever_brought_them(small):
    small.broker.send([Draft("t", b"direct %d" % i) for i in range(5)])
    small.advance(HOUR_MS + 50_000)
    before = small.in_topic("t")
    assert len(before) == 56
    for path in sorted((small.directory / "index" / "queues").rglob("0*")):
        if path.is_file():
            overwrite(path, 0, bytes(path.stat().st_size))
    assert small.in_topic("t") == before
    assert repaired(small, Derived.QUEUES) == 56
    received = small.broker.receive("t", "g", count=32)
    assert [d.message.body for d in received] == [row.body for row in before[:32]]


@pytest.mark.parametrize(("queues", "other_row"), [((0, 0), 1), ((0, 1), 0)])
def test_queue_rows_in_each_others_place_are_found(tmp_path, queues, other_row):
    small = SmallBroker(tmp_path / "data", queues_per_topic=2)
    for number in range(8):
        small.send("t", b"%d" % number)
    before = small.in_topic("t")
    files = [next(iter((small.directory / "index" / "queues").glob(f"*/{queue}/0*"))) for queue in queues]
    size = QUEUE_ROW.itemsize
    one, other = files[0].read_bytes()[:size], files[1].read_bytes()[other_row * size :][:size]
    overwrite(files[0], 0, other)
    overwrite(files[1], other_row * size, one)
    assert small.in_topic("t") == before
    assert repaired(small, Derived.QUEUES) == 2
    small.check()
    small.close()


def test_queue_rows_of_a_stopped_broker_that_are_gone_are_not_taken_for_expired(small):
    small.advance(HOUR_MS + 98_000)
    before = small.in_topic("t")
    stop(small)
    files = sorted(p for p in (small.directory / "index" / "queues").rglob("0*") if p.is_file())
    files[0].unlink()
    os.truncate(files[1], 100)
    small.open()
    assert small.in_topic("t") == before
    assert len(before) == 99


def test_an_entry_that_is_damaged_together_with_its_frame_is_refused_with_the_remedy(small):
    small.broker.store.checkpoint()
    segment = small.directory / "log" / f"{0:020d}.log"
    content = segment.read_bytes()
    at = content.index(b'"k5"') if b'"k5"' in content else content.index(b"k5")
    overwrite(segment, at, b"XX")
    overwrite(entry_file(small, 5), 5 * ENTRY.itemsize, bytes(8))
    with pytest.raises(CorruptionError, match=r"seq 5.*tidemill salvage"):
        small.broker.views.pending(limit=1000)
    overwrite(segment, at, content[at : at + 2])


def test_an_index_of_the_format_before_is_derived_again_and_its_rows_are_not_trusted(tmp_path):
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path, filter="data")
    entries = tmp_path / "data" / "index" / "entries" / f"{0:020d}"
    overwrite(entries, DUE, START_MS.to_bytes(8, "little"))  # the first message, due at once
    small = SmallBroker(tmp_path / "data", queues_per_topic=2)
    assert small.broker.status().pending == 49
    small.advance(4_999)
    assert sorted(bodies(small, "orders")) == [b"near %d" % i for i in range(5)]
    small.advance(2_000_000)
    assert len(bodies(small, "orders")) == 8 - 1 + 40 + 5
    assert len(bodies(small, "levels")) == 6
    assert [d.message.body for d in small.broker.receive("direct", "g", count=32)] != []
    small.check()
    small.close()
    assert Checkpoint(RealDisk(), small.directory / "index", "checkpoint", INDEX_FORMAT).load() is not None


def test_an_older_version_refuses_the_new_index(tmp_path):
    small = SmallBroker(tmp_path / "data")
    small.close()
    with pytest.raises(NewerFormatError, match="format 2, this Tidemill reads up to 1"):
        Checkpoint(RealDisk(), small.directory / "index", "checkpoint", 1).load()


def test_files_with_other_names_do_no_harm(small):
    (small.directory / "index" / "entries" / "README").write_text("hello")
    (small.directory / "index" / "entries" / f"{7:020d}").write_text("hello")
    small.reopen()
    assert len(small.broker.views.pending(limit=1000)) == 100


def test_rows_are_repaired_also_where_the_disk_is_new(tmp_path):
    """A repair is written, and a crash after it finds it repaired or repairs it again."""
    small = SmallBroker(tmp_path / "data", queues_per_topic=1)
    assert isinstance(small.disk, FaultyDisk)
    small.broker.send([Draft("t", b"%d" % i, delay_ms=HOUR_MS) for i in range(10)])
    small.broker.store.checkpoint()
    overwrite(entry_file(small, 0), 0, bytes(100))
    assert len(small.broker.views.pending(limit=100)) == 10
    small.kill(power_cut=True)
    small.open()
    assert len(small.broker.views.pending(limit=100)) == 10
    small.check()
    small.close()


def test_what_the_timer_took_for_due_is_not_forgotten_where_its_topic_is_paused(tmp_path):
    small = SmallBroker(tmp_path / "data", queues_per_topic=1)
    small.send("t", b"soon", delay_ms=60_000)
    small.send("t", b"held", delay_ms=70_000)
    small.advance(10_000)
    seq = small.send("t", b"far", delay_ms=600_000).handle.seq
    set_due(small, seq, 0)  # before the timer has read it
    small.advance(30_000)
    small.broker.topics.change("t", is_paused=True)
    small.advance(30_000)
    small.advance(10_000)
    small.kill_and_open()
    small.broker.topics.change("t", is_paused=False)
    small.advance(HOUR_MS)
    assert sorted(bodies(small)) == [b"far", b"held", b"soon"]
    assert (
        max(row.released_at_ms - row.deliver_at_ms for row in small.in_topic("t") if row.body == b"far") == 0
    )
    small.check()
    small.close()
