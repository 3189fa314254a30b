"""Salvage of a damaged commit log: what is copied, what is reported, for each kind of frame."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from helpers.small_broker import START_MS, STORE, SmallBroker
from tidemill.broker.salvage import MESSAGES_NAME, REPORT_NAME, salvage
from tidemill.core.errors import (
    CorruptionError,
    DirectoryLockedError,
    DiskFullError,
    RequestError,
    StorageError,
    SyncFailedError,
)
from tidemill.core.limits import MIB
from tidemill.core.model import CancelAnswer, Draft
from tidemill.log.disk import RealDisk
from tidemill.log.read_only_disk import ReadOnlyDisk
from tidemill.store.consumers.consumer_log import KIND_CHANGES, KIND_GROUP
from tidemill.store.consumers.consumer_state import ACT_SETTLE, CHANGE
from tidemill.store.damage import Derived
from tidemill.store.formats.frames import Kind
from tidemill.store.salvage.source import SourceLog
from tidemill.store.upkeep.head_cut import cut_head
from tidemill.testing import FaultPlan, FaultyDisk

HOUR_MS = 3_600_000


@pytest.fixture
def small(tmp_path):
    return SmallBroker(tmp_path / "data", queues_per_topic=1)


def frames(small, kind):
    log = small.broker.store.log
    return [frame for frame in log.frames(log.head, log.written_end) if frame.kind == kind]


def damage(small, *damaged, folder="log"):
    """Flip a byte in each of these frames of a stopped broker."""
    starts = sorted(int(path.stem) for path in (small.directory / folder).glob("*.log"))
    for frame in damaged:
        start = max(start for start in starts if start <= frame.offset)
        fd = os.open(small.directory / folder / f"{start:020d}.log", os.O_RDWR)
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


def stopped(small, *damaged):
    """Kill the broker and damage these frames."""
    small.kill()
    damage(small, *damaged)


def pending(copy):
    return {waiting.seq: waiting.deliver_at_ms - START_MS for waiting in copy.broker.views.pending(limit=100)}


def may_be(copy):
    return {line["seq"]: line["may_be"] for line in listed(copy)}


def last(small, kind):
    return frames(small, kind)[-1]


def test_a_torn_tail_was_never_acknowledged_and_is_not_missing(small):
    small.send("t", b"1", delay_ms=HOUR_MS)
    end = small.log_end
    small.kill()
    with (small.directory / "log" / f"{0:020d}.log").open("r+b") as file:
        file.seek(end)
        file.write(b"TMFR" + b"torn" * 20)
    report, copy = salvaged(small)
    assert report.is_whole
    assert pending(copy) == {0: HOUR_MS}
    copy.close()


def test_an_id_that_was_sent_before_is_still_recognised_in_the_copy(small):
    first = small.send("t", b"1", id="x", delay_ms=HOUR_MS)
    small.send("t", b"lost", delay_ms=HOUR_MS)
    small.send("t", b"2", delay_ms=HOUR_MS)
    stopped(small, frames(small, Kind.MESSAGES)[1])
    _, copy = salvaged(small)
    again = copy.send("t", b"1", id="x", delay_ms=HOUR_MS)
    assert again.is_repeat and again.handle == first.handle
    assert copy.broker.cancel([first.handle]) == [CancelAnswer.CANCELLED]
    copy.close()


def test_messages_that_went_to_their_queue_at_once_leave_their_offsets_behind(small):
    for i in range(5):
        small.send("t", b"%d" % i)
    stopped(small, frames(small, Kind.MESSAGES)[1])
    report, copy = salvaged(small)
    (region,) = report.regions
    (rows,) = region.queues
    assert (rows.topic, rows.queue, rows.first_offset, rows.end_offset) == ("t", 0, 1, 2)
    present = [(row.offset, row.body) for row in copy.in_topic("t")]
    assert present == [(0, b"0"), (2, b"2"), (3, b"3"), (4, b"4")]
    copy.close()


def test_a_group_goes_on_where_it_was_on_the_other_side_of_a_gap(small):
    for i in range(5):
        small.send("t", b"%d" % i)
    taken = small.broker.receive("t", "g", count=3)
    small.broker.ack([delivery.ack_token for delivery in taken])
    stopped(small, frames(small, Kind.MESSAGES)[1])
    _, copy = salvaged(small)
    assert [d.message.body for d in copy.broker.receive("t", "g", count=10)] == [b"3", b"4"]
    copy.close()


def test_a_message_whose_release_is_lost_stays_pending_and_is_listed(small):
    small.send("t", b"1", delay_ms=1000, id="one", keys=("k",))
    small.send("t", b"2", delay_ms=HOUR_MS)
    small.advance(2000)
    small.send("t", b"3")
    stopped(small, last(small, Kind.RELEASE))
    report, copy = salvaged(small)
    assert report.possibly_released == 1
    (line,) = [line for line in listed(copy) if "released" in line["may_be"]]
    assert (line["id"], line["topic"], line["keys"], line["due_ms"]) == ("one", "t", ["k"], START_MS + 1000)
    copy.advance(0)
    assert [row.body for row in copy.in_topic("t")] == [b"3", b"1"]
    copy.close()


def test_after_a_clock_was_set_back_what_was_due_is_not_taken_for_certain(small):
    small.send("t", b"1", delay_ms=60_000)
    small.advance(59_000)
    small.send("t", b"2")
    small.advance(2_000)
    small.clock.leap_ms(-120_000)
    small.send("t", b"3")
    stopped(small, last(small, Kind.RELEASE))
    _, copy = salvaged(small)
    assert "released" in may_be(copy)[0]
    copy.close()


def test_totals_of_the_next_file_say_that_no_release_is_lost(small):
    small.broker.topics.create("t")
    small.broker.topics.change("t", is_paused=True)
    small.send("t", b"1", delay_ms=1000)
    small.advance(2000)
    small.send("t", b"lost")
    lost = last(small, Kind.MESSAGES)
    small.fill_segment()
    stopped(small, lost)
    report, copy = salvaged(small)
    (region,) = report.regions
    assert region.is_exact
    assert [(c.topic, c.sent, c.released, c.cancelled) for c in region.counts] == [("t", 1, 0, 0)]
    assert report.possibly_released == report.possibly_cancelled == report.possibly_moved == 0
    assert listed(copy) == []
    copy.close()


def test_a_lost_cancel_leaves_its_message_pending_and_listed(small):
    receipts = [small.send("t", b"%d" % i, delay_ms=HOUR_MS) for i in range(3)]
    small.broker.cancel([receipts[1].handle])
    small.send("t", b"later")
    stopped(small, last(small, Kind.CANCEL))
    report, copy = salvaged(small)
    assert sorted(pending(copy)) == [0, 1, 2]
    assert report.possibly_cancelled == 3
    assert may_be(copy)[1] == ["cancelled", "moved"]
    copy.close()


def test_a_lost_reschedule_leaves_the_message_at_its_time_before(small):
    receipt = small.send("t", b"1", delay_ms=HOUR_MS)
    small.broker.reschedule([receipt.handle], deliver_at_ms=START_MS + 2 * HOUR_MS)
    small.send("t", b"2", delay_ms=HOUR_MS)
    stopped(small, last(small, Kind.RE_ENTER))
    report, copy = salvaged(small)
    (region,) = report.regions
    assert region.seqs == [(1, 2)]
    assert pending(copy) == {0: HOUR_MS, 2: HOUR_MS}
    assert "moved" in may_be(copy)[0]
    assert copy.broker.cancel([receipt.handle]) == [CancelAnswer.CANCELLED]
    copy.close()


def test_a_reschedule_brings_back_a_message_whose_own_frame_is_lost(small):
    receipt = small.send("t", b"1", delay_ms=HOUR_MS)
    small.broker.reschedule([receipt.handle], deliver_at_ms=START_MS + 2 * HOUR_MS)
    stopped(small, last(small, Kind.MESSAGES))
    _, copy = salvaged(small)
    assert pending(copy) == {1: 2 * HOUR_MS}
    copy.advance(2 * HOUR_MS)
    assert copy.bodies("t") == [b"1"]
    copy.close()


def test_a_release_of_a_lost_message_leaves_an_expired_row(small):
    for i in range(3):
        small.send("t", b"%d" % i, delay_ms=1000)
    small.advance(2000)
    stopped(small, frames(small, Kind.MESSAGES)[1])
    report, copy = salvaged(small)
    assert report.expired_releases == 1
    assert [(row.offset, row.body) for row in copy.in_topic("t")] == [(0, b"0"), (2, b"2")]
    copy.close()


def test_a_topic_whose_frame_is_lost_is_known_from_the_index(small):
    small.send("known", b"1", delay_ms=HOUR_MS)
    small.broker.store.checkpoint()
    small.send("known", b"2", delay_ms=HOUR_MS)
    stopped(small, frames(small, Kind.TOPIC)[0])
    report, copy = salvaged(small)
    assert report.regions[0].topics == ["known"]
    assert [topic.name for topic in copy.broker.store.topics] == ["known"]
    assert sorted(pending(copy)) == [0, 1]
    copy.close()


def test_a_topic_of_which_nothing_is_known_gets_a_name(small):
    small.send("lost", b"1", delay_ms=HOUR_MS)
    stopped(small, frames(small, Kind.TOPIC)[0])
    _, copy = salvaged(small)
    copy.advance(HOUR_MS)
    assert copy.bodies("salvaged-topic-1") == [b"1"]
    copy.close()


def test_a_topic_made_again_takes_the_place_of_the_one_whose_deletion_is_lost(small):
    small.send("t", b"1", delay_ms=HOUR_MS)
    small.broker.topics.delete("t", is_forced=True)
    deletion = last(small, Kind.TOPIC)
    small.send("t", b"2", delay_ms=HOUR_MS)
    stopped(small, deletion)
    _, copy = salvaged(small)
    assert pending(copy) == {1: HOUR_MS}
    assert [topic.id for topic in copy.broker.store.topics] == [2]
    copy.close()


def test_a_deleted_topic_tells_which_seqs_there_were(small):
    small.send("t", b"1", delay_ms=HOUR_MS)
    small.send("t", b"lost", delay_ms=HOUR_MS)
    small.broker.topics.delete("t", is_forced=True)
    stopped(small, last(small, Kind.MESSAGES))
    report, copy = salvaged(small)
    assert report.regions[0].seqs == [(1, 2)]
    assert pending(copy) == {}
    copy.close()


def test_the_answer_to_a_request_is_the_same_in_the_copy(small):
    receipts = [small.send("t", b"%d" % i, delay_ms=HOUR_MS) for i in range(3)]
    handles = [receipts[0].handle, receipts[2].handle]
    answer = small.broker.cancel(handles, request_id="cancel-twice")
    stopped(small, frames(small, Kind.MESSAGES)[2])
    _, copy = salvaged(small)
    assert copy.broker.cancel(handles, request_id="cancel-twice") == answer == [CancelAnswer.CANCELLED] * 2
    copy.close()


def test_a_commit_brings_back_the_message_of_a_lost_first_half(small):
    verbs = small.broker.transactions
    verbs.begin([Draft("t", b"1", id="x"), Draft("t", b"2", id="y")])
    verbs.commit("t", "x")
    stopped(small, last(small, Kind.HALF))
    _, copy = salvaged(small)
    assert copy.broker.transactions.halves() == []
    assert copy.bodies("t") == [b"1"]
    copy.close()


def test_a_transaction_whose_end_is_lost_is_open_again_and_listed(small):
    verbs = small.broker.transactions
    verbs.begin([Draft("t", b"1", id="x"), Draft("t", b"2", id="y")])
    verbs.commit("t", "x")
    ended = last(small, Kind.END)
    verbs.commit("t", "y")
    stopped(small, ended)
    report, copy = salvaged(small)
    assert [half.id for half in report.possibly_ended] == ["x"]
    assert [half.message_id for half in copy.broker.transactions.halves()] == ["x"]
    copy.broker.transactions.commit("t", "x")
    assert copy.bodies("t") == [b"2", b"1"]
    copy.close()


def test_a_delivery_whose_send_back_is_lost_is_delivered_again(small):
    small.send("t", b"1")
    (delivery,) = small.broker.receive("t", "g")
    small.broker.send_back([delivery.ack_token])
    small.send("t", b"2")
    stopped(small, last(small, Kind.SEND_BACK))
    report, copy = salvaged(small)
    (row,) = [group for group in report.groups if group.topic == "t"]
    assert (row.group, row.next_offset, row.unsettled) == ("g", 1, 1)
    copy.advance(HOUR_MS)
    assert sorted(d.message.body for d in copy.broker.receive("t", "g", count=9)) == [b"1", b"2"]
    copy.close()


def test_nothing_is_lost_with_the_frame_that_opens_a_file(small):
    small.send("t", b"1", delay_ms=HOUR_MS)
    small.fill_segment()
    stopped(small, frames(small, Kind.BASE)[1])
    report, copy = salvaged(small)
    assert report.is_whole
    assert len(report.opening_frames) == 1
    assert pending(copy) == {0: HOUR_MS}
    copy.close()


def test_the_frame_that_opens_a_cut_log_is_made_again_from_what_follows(small):
    small.send("t", b"1", delay_ms=HOUR_MS * 5)
    small.fill_segment()
    small.advance(2 * HOUR_MS)
    small.broker.store.checkpoint()
    cut_head(small.broker.store, small.clock.now_ms(), 0)
    small.send("t", b"2", delay_ms=HOUR_MS)
    assert small.broker.store.log.head > 0
    stopped(small, frames(small, Kind.BASE)[0])
    _, copy = salvaged(small)
    assert sorted(pending(copy).values()) == [3 * HOUR_MS, 5 * HOUR_MS]
    assert copy.broker.store.ledger.head_seq == 1
    copy.close()


def test_a_missing_file_in_the_middle_is_bridged_by_the_next_one(small):
    small.send("t", b"0", delay_ms=HOUR_MS)
    small.fill_segment()
    small.send("t", b"lost", delay_ms=HOUR_MS)
    small.fill_segment()
    small.send("t", b"2", delay_ms=HOUR_MS)
    small.kill()
    sorted((small.directory / "log").glob("*.log"))[1].unlink()
    report, copy = salvaged(small)
    (region,) = report.regions
    assert region.is_exact and region.seqs == [(1, 2)]
    assert region.ranges[0]["is_missing"]
    assert pending(copy) == {0: HOUR_MS, 2: HOUR_MS}
    copy.close()


def test_where_the_first_files_are_missing_the_copy_begins_with_the_next(small):
    small.send("t", b"lost", delay_ms=HOUR_MS)
    small.fill_segment()
    small.send("t", b"1", delay_ms=HOUR_MS)
    small.kill()
    min((small.directory / "log").glob("*.log")).unlink()
    report, copy = salvaged(small)
    (region,) = report.regions
    assert region.seqs == [(0, 1)] and region.time_from_ms is None
    assert [(rows.topic, rows.first_offset) for rows in region.queues] == [("filler", 0)]
    assert pending(copy) == {1: HOUR_MS}
    copy.close()


def test_a_cut_off_end_is_known_from_the_index(small):
    small.send("t", b"0", delay_ms=HOUR_MS)
    end = small.log_end
    small.send("t", b"1", delay_ms=2 * HOUR_MS)
    small.broker.store.checkpoint()
    small.kill()
    os.truncate(small.directory / "log" / f"{0:020d}.log", end)
    report, copy = salvaged(small)
    (region,) = report.regions
    assert region.seqs == [(1, 2)]
    due_ms = START_MS + 2 * HOUR_MS
    assert region.known_messages == [{"topic": "t", "count": 1, "due_from_ms": due_ms, "due_to_ms": due_ms}]
    assert copy.send("t", b"2", delay_ms=HOUR_MS).handle.seq == 2
    copy.close()


@pytest.mark.parametrize("left", [0, 100])
def test_of_a_log_without_a_readable_frame_the_state_of_the_index_is_kept(small, left):
    small.send("t", b"0", delay_ms=HOUR_MS)
    small.broker.store.checkpoint()
    small.kill()
    os.truncate(small.directory / "log" / f"{0:020d}.log", left)
    report, copy = salvaged(small)
    assert [region.seqs for region in report.regions] == [[(0, 1)]]
    assert copy.send("t", b"1", delay_ms=HOUR_MS).handle.seq == 1
    copy.close()


def test_damaged_rows_of_lost_messages_are_derived_again(small):
    for i in range(4):
        small.send("t", b"%d" % i, delay_ms=HOUR_MS)
        small.send("t", b"now %d" % i)
    lost = frames(small, Kind.MESSAGES)[2:4]
    stopped(small, *lost)
    _, copy = salvaged(small)
    copy.broker.store.checkpoint()
    copy.kill()
    for path in [*copy.directory.glob("index/entries/0*"), *copy.directory.glob("index/queues/*/*/0*")]:
        path.write_bytes(bytes(path.stat().st_size))
    copy.open()
    copy.check()
    assert copy.broker.store.repairs.counts()[Derived.ENTRIES] == 4
    assert [row.body for row in copy.in_topic("t")] == [b"now 0", b"now 2", b"now 3"]
    copy.close()


# -- the consumers' log ---------------------------------------------------------------------------


def consumer_frames(small):
    return list(SourceLog(ReadOnlyDisk(), small.directory / "consumers").intact_frames())


@pytest.mark.parametrize("damaged", range(1, 16, 2))
def test_behind_damage_in_the_consumer_log_nothing_counts_as_acknowledged_that_was_not(small, damaged):
    """Every second message is acknowledged; each is delivered again unless a readable record settles it."""
    for i in range(8):
        small.send("t", b"%d" % i)
    acknowledged = set()
    for i in range(7):
        (delivery,) = small.broker.receive("t", "g", count=1, invisible_ms=1000)
        if i % 2:
            small.broker.ack([delivery.ack_token])
            acknowledged.add(delivery.message.body)
    small.kill()
    frame = consumer_frames(small)[min(damaged, len(consumer_frames(small)) - 1)]
    damage(small, frame, folder="consumers")
    report, copy = salvaged(small)
    copy.advance(5000)
    again = {delivery.message.body for delivery in copy.broker.receive("t", "g", count=20)}
    everything = {b"%d" % i for i in range(8)}
    assert everything - acknowledged <= again
    if again != everything - acknowledged:
        assert (not report.is_whole and report.consumer_damages) or report.unknown_groups
    copy.close()


def test_acknowledgements_on_both_sides_of_the_damage_are_kept(small):
    for i in range(9):
        small.send("t", b"%d" % i)
    for _ in range(9):
        (delivery,) = small.broker.receive("t", "g", count=1)
        small.broker.ack([delivery.ack_token])
    small.kill()
    settled = [frame for frame in consumer_frames(small) if is_act(frame, ACT_SETTLE)]
    damage(small, settled[4], folder="consumers")
    report, copy = salvaged(small)
    assert not report.is_whole
    copy.advance(60_000)
    assert [d.message.body for d in copy.broker.receive("t", "g", count=20)] == [b"4"]
    copy.close()


def is_act(frame, act):
    return frame.kind == KIND_CHANGES and np.frombuffer(frame.payload, CHANGE)["act"][0] == act


def test_a_group_whose_settings_are_lost_begins_again(small):
    small.send("t", b"1")
    (delivery,) = small.broker.receive("t", "g", count=1)
    small.broker.ack([delivery.ack_token])
    small.kill()
    damage(small, next(f for f in consumer_frames(small) if f.kind == KIND_GROUP), folder="consumers")
    report, copy = salvaged(small)
    assert report.unknown_groups == [1]
    assert [d.message.body for d in copy.broker.receive("t", "other", count=9)] == [b"1"]
    assert [d.message.body for d in copy.broker.receive("t", "g", count=9)] == [b"1"]
    copy.close()


def test_a_lost_consumers_checkpoint_is_reported_and_the_rest_copied(small):
    small.send("t", b"1", delay_ms=HOUR_MS)
    small.kill()
    for path in (small.directory / "consumers").glob("checkpoint.*"):
        path.write_bytes(bytes(100))
    report, copy = salvaged(small)
    assert report.consumer_checkpoint_lost and not report.is_whole
    assert pending(copy) == {0: HOUR_MS}
    copy.close()


# -- care -----------------------------------------------------------------------------------------


def salvage_to(small, target, disk=None):
    return salvage(small.directory, target, disk or RealDisk(), START_MS, lambda *_: None, STORE)


def test_a_directory_in_use_is_refused(small, tmp_path):
    small.close()
    held = RealDisk().lock(small.directory / "LOCK", "another process")
    with pytest.raises(DirectoryLockedError, match="in use by another process"):
        salvage_to(small, tmp_path / "new")
    held.release()
    assert not (tmp_path / "new").exists()


def test_a_target_that_holds_something_or_lies_inside_is_refused(small, tmp_path):
    small.close()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").touch()
    with pytest.raises(RequestError, match="not empty"):
        salvage_to(small, tmp_path / "new")
    with pytest.raises(RequestError, match="inside each other"):
        salvage_to(small, small.directory / "new")


@pytest.mark.parametrize("fault", ["full", "sync"])
def test_a_copy_that_was_broken_off_is_never_served(small, tmp_path, fault):
    for _ in range(40):
        small.send("t", bytes(1000), delay_ms=HOUR_MS)
    small.close()
    disk = FaultyDisk(1)
    target = tmp_path / "new"
    if fault == "full":
        disk.capacity_bytes = 3 * MIB
        large = replace(STORE, segment_bytes=8 * MIB)
        with pytest.raises(DiskFullError, match="the disk is full"):
            salvage(small.directory, target, disk, START_MS, lambda *_: None, large)
    else:
        disk.arm(FaultPlan(fail_sync_at=6))
        with pytest.raises(SyncFailedError):
            salvage_to(small, target, disk)
    assert not list(target.glob("identity.*"))
    with pytest.raises(StorageError, match="did not finish; remove it and start again"):
        SmallBroker(target, clock=small.clock)


def test_a_read_only_directory_can_be_salvaged(small, tmp_path):
    small.send("t", b"1", delay_ms=HOUR_MS)
    small.close()
    paths = [small.directory, *small.directory.rglob("*")]
    opened = []
    real_open = os.open

    def open_only_to_read(path, flags, *more, **named):
        if str(path).startswith(str(small.directory)):
            opened.append(path)
            assert flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) == 0, path
        return real_open(path, flags, *more, **named)

    modes = {path: path.stat().st_mode for path in paths}
    os.open = open_only_to_read
    try:
        assert salvage_to(small, tmp_path / "new").is_whole
    finally:
        os.open = real_open
    assert opened
    assert modes == {path: path.stat().st_mode for path in [small.directory, *small.directory.rglob("*")]}


def test_a_damaged_identity_gives_the_copy_a_new_one_and_says_so(small):
    small.send("t", b"1", delay_ms=HOUR_MS)
    small.close()
    for path in small.directory.glob("identity.*"):
        path.write_bytes(b"")
    report, copy = salvaged(small)
    assert report.has_new_broker_id and not report.is_whole
    assert pending(copy) == {0: HOUR_MS}
    copy.close()
