"""One rule for append and replay: a frame acts on a seq only if it is pending at that point of the log."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers.store_parts import lone_indexes
from tidemill.core.errors import CorruptionError
from tidemill.core.model import MessageType, StoredMessage, TopicType
from tidemill.log.frame import Frame, frame_bytes
from tidemill.store.formats.frames import (
    RELEASE_GROUP,
    Base,
    Cancel,
    End,
    Half,
    Kind,
    ReEnter,
    ReEnterReason,
    Release,
    SendBack,
    Settlement,
    TopicChange,
)
from tidemill.store.formats.message_format import Section
from tidemill.store.formats.rows import encode_messages
from tidemill.store.ledger import State
from tidemill.store.topics import Topic

_MESSAGE = StoredMessage("id", 1, 0, MessageType.DELAY, 0, 0, "", ("k",), "", 0, 5, 60_000, {}, b"body")


class FrameFeed:
    """Indexes without a log: frames are made here and applied one after another."""

    def __init__(self, directory) -> None:
        self.indexes = lone_indexes(directory)
        self.offset = 8
        self.apply(Kind.TOPIC, TopicChange(Topic(1, "t", TopicType.MIXED, 2).as_dict()))

    def apply(self, kind, payload, stamp_ms=100_000):
        data = b"".join(bytes(part) for part in payload.parts()) if hasattr(payload, "parts") else payload
        frame = Frame(self.offset, kind, 0, stamp_ms, memoryview(data))
        self.offset += frame_bytes(len(data))
        return self.indexes.apply(frame)

    def rows(self, messages, offsets=None):
        return [encode_messages(messages, offsets or [-1] * len(messages), self.indexes.ledger.next_seq)]

    def put(self, *messages):
        return self.apply(Kind.MESSAGES, b"".join(self.rows(messages)))

    def cancel(self, *seqs):
        return self.apply(
            Kind.CANCEL, Cancel(np.array(seqs), np.array([1], np.uint32), np.array([len(seqs)], np.uint32))
        )

    def release(self, *seqs, first_offset=0):
        groups = np.array([(1, 0, 0, first_offset, len(seqs))], RELEASE_GROUP)
        via, placements = np.ones(len(seqs), np.uint8), np.ones(len(seqs), np.uint16)
        return self.apply(
            Kind.RELEASE, Release(groups, np.array(seqs), via, placements, np.empty(0, np.uint32), None)
        )

    def re_enter(self, *old_seqs):
        rows = self.rows([replace(_MESSAGE, deliver_at_ms=120_000) for _ in old_seqs])
        section = Section(memoryview(rows[0]))
        return self.apply(Kind.RE_ENTER, ReEnter(ReEnterReason.RESCHEDULE, np.array(old_seqs), section, rows))

    def states(self):
        ledger = self.indexes.ledger
        return [ledger.state(seq).name.lower() for seq in range(ledger.head_seq, ledger.next_seq)]

    @property
    def pending(self):
        return self.indexes.due_counts.pending(1)


@pytest.fixture
def feed(tmp_path):
    feed = FrameFeed(tmp_path / "index")
    yield feed
    assert feed.pending == feed.states().count("pending")
    feed.indexes.entries.close()


def test_a_message_moves_to_a_new_seq(feed):
    feed.put(_MESSAGE, _MESSAGE)
    feed.re_enter(0)
    assert feed.states() == ["moved", "pending", "pending"]
    assert feed.indexes.due_counts.minutes(1, 0, 9) == {1: 1, 2: 1}


@pytest.mark.parametrize("settle", ["cancel", "release", "re_enter"])
def test_moving_what_is_not_pending_makes_a_row_that_is_born_moved(feed, settle):
    feed.put(_MESSAGE, _MESSAGE)
    getattr(feed, settle)(0)
    before = feed.states()
    feed.re_enter(0, 1)
    assert feed.states() == [before[0], "moved", *before[2:], "moved", "pending"]


@pytest.mark.parametrize("settle", ["release", "re_enter"])
def test_cancelling_what_is_not_pending_does_nothing_to_it(feed, settle):
    feed.put(_MESSAGE, _MESSAGE)
    getattr(feed, settle)(0)
    before = feed.states()
    feed.cancel(0, 1)
    assert feed.states() == [before[0], "cancelled", *before[2:]]


@pytest.mark.parametrize("settle", ["cancel", "release", "re_enter"])
def test_releasing_what_is_not_pending_is_corruption(feed, settle):
    feed.put(_MESSAGE)
    getattr(feed, settle)(0)
    before = feed.states()
    with pytest.raises(CorruptionError, match="not pending"):
        feed.release(0, first_offset=1)
    assert feed.states() == before


def test_what_is_below_the_head_counts_as_pending_when_the_frame_was_written(feed):
    """Its segment was cut after the frame: the writer had looked before it appended."""
    feed.indexes.start_from(Base(10, [Topic(1, "t", TopicType.MIXED, 2).as_dict()], {"1": [0, 0]}, {}))
    feed.re_enter(3, 9)
    assert feed.states() == ["pending", "pending"]
    effects = feed.release(4, 10)
    assert feed.states() == ["released", "pending"]
    assert effects.publication.rows["seq"].tolist() == [4, 10]
    assert effects.publication.rows["place"][0] == 0
    feed.cancel(5, 11)
    assert feed.states() == ["released", "cancelled"]
    assert feed.indexes.totals.of_topic(1) == (0, 2, 2)


def test_a_base_frame_or_a_first_seq_that_does_not_fit_is_corruption(feed):
    feed.put(_MESSAGE)
    with pytest.raises(CorruptionError, match="next seq is 7, the log before it says 1"):
        feed.apply(Kind.BASE, Base(7, [], {}, {}))
    with pytest.raises(CorruptionError, match="begins at seq 5, expected 1"):
        feed.apply(Kind.MESSAGES, encode_messages([_MESSAGE], [-1], 5))
    with pytest.raises(CorruptionError, match="unknown kind 77"):
        feed.apply(77, b"")


def test_untimed_messages_are_published_where_the_frame_says(feed):
    direct = replace(_MESSAGE, deliver_at_ms=-1, type=MessageType.NORMAL)
    other = replace(direct, queue_id=1)
    effects = feed.apply(Kind.MESSAGES, b"".join(feed.rows([direct, other, _MESSAGE, direct], [0, 0, -1, 1])))
    publication = effects.publication
    assert (publication.queues, publication.first_offsets, publication.counts) == (
        [(1, 0), (1, 1)],
        [0, 0],
        [2, 1],
    )
    assert (publication.rows["place"] & np.uint64(0xFFFF)).tolist() == [0, 3, 1]
    assert feed.states() == ["pending"]
    assert feed.indexes.topics.offsets_of(feed.indexes.topics.by_id(1)) == [2, 1]


def test_transactions_open_move_and_end(feed):
    half = replace(_MESSAGE, id="h", deliver_at_ms=-1)
    rows = feed.rows([half, replace(half, id="i")])
    place = feed.offset << 16
    feed.apply(Kind.HALF, Half(np.zeros(2, np.uint64), Section(memoryview(rows[0])), rows))
    assert sorted(feed.indexes.open_transactions) == ["1:h", "1:i"]
    assert feed.states() == []
    rows = feed.rows([half])
    moved_to = feed.offset << 16
    feed.apply(Kind.HALF, Half(np.array([place], np.uint64), Section(memoryview(rows[0])), rows))
    assert feed.indexes.open_transactions["1:h"].place == moved_to
    commit = feed.rows([_MESSAGE])
    feed.apply(Kind.END, End(moved_to, Section(memoryview(commit[0])), commit))
    assert (sorted(feed.indexes.open_transactions), feed.states()) == (["1:i"], ["pending"])
    feed.apply(Kind.END, End(place | 1, None))
    assert (feed.indexes.open_transactions, feed.states()) == ({}, ["pending"])


def test_deleting_a_topic_cancels_what_waits_for_it_below_the_seq(feed):
    feed.apply(Kind.TOPIC, TopicChange(Topic(2, "u", TopicType.MIXED, 1).as_dict()))
    feed.put(_MESSAGE, replace(_MESSAGE, topic_id=2), _MESSAGE)
    effects = feed.apply(Kind.TOPIC, TopicChange(Topic(2, "u", TopicType.MIXED, 1).as_dict(), True, 3, 1))
    assert effects.forgotten_topic_id == 2
    assert feed.states() == ["pending", "cancelled", "pending"]
    assert feed.indexes.topics.named("u") is None
    assert feed.indexes.topics.next_topic_id == 3


def test_a_message_sent_back_settles_its_delivery(feed):
    rows = feed.rows([replace(_MESSAGE, deliver_at_ms=-1)], [0])
    settlement = Settlement("g", 1, 0, 4)
    effects = feed.apply(Kind.SEND_BACK, SendBack([settlement], Section(memoryview(rows[0])), rows))
    assert effects.settlements == (settlement,)
    assert effects.publication is not None


def test_near_ones_that_wait_are_found_again_from_the_lower_bound(feed):
    near = replace(_MESSAGE, flags=1)
    feed.put(near, _MESSAGE, near, near)
    feed.cancel(0)
    assert feed.indexes.pending_near().tolist() == [2, 3]
    assert feed.indexes.near_floor == 2
    feed.cancel(2)
    feed.cancel(3)
    assert feed.indexes.pending_near().tolist() == []
    assert feed.indexes.near_floor == 4
    assert feed.indexes.ledger.state(1) is State.PENDING
