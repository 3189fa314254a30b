"""Modules of the store layer against dictionaries: ledger, find index, counts, hashes, offsets, retention."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.model import TopicType
from tidemill.log.disk import RealDisk
from tidemill.store.damage import Repairs
from tidemill.store.due_counts import DueCounts
from tidemill.store.find import find_memory
from tidemill.store.find.find_files import RunFile
from tidemill.store.find.find_index import FindIndex
from tidemill.store.find.hashing import hash_slices, hash_texts, id_hash, key_hash
from tidemill.store.ledger import Ledger, State
from tidemill.store.topic_queues import grouped
from tidemill.store.topics import Topic, TopicTable
from tidemill.store.totals import Totals
from tidemill.store.upkeep.head_cut import SegmentUse, cut_offset

# -- ledger ---------------------------------------------------------------------------------------

_LEDGER_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(0, 40)),
        st.tuples(
            st.just("settle"), st.lists(st.integers(-5, 300), max_size=20), st.sampled_from(list(State)[1:])
        ),
        st.tuples(st.just("cut"), st.integers(0, 60)),
        st.tuples(st.just("save")),
    ),
    max_size=30,
)


@given(st.integers(0, 9), _LEDGER_STEPS)
def test_the_ledger_is_a_dictionary_of_states(head, steps):
    ledger, model = Ledger(head), {}
    for step in steps:
        if step[0] == "grow":
            first = ledger.grow(step[1])
            model.update(dict.fromkeys(range(first, first + step[1]), State.PENDING))
        elif step[0] == "settle":
            seqs = np.array(sorted(set(step[1])), np.int64)
            acted = ledger.settle(seqs, step[2])
            assert acted.tolist() == [model.get(seq) is State.PENDING for seq in seqs.tolist()]
            model.update(dict.fromkeys(seqs[acted].tolist(), step[2]))
        elif step[0] == "cut":
            below = min(ledger.head_seq + step[1], ledger.first_pending())
            ledger.cut_head(below)
            model = {seq: state for seq, state in model.items() if seq >= below}
        else:
            ledger = Ledger.decode(ledger.encode())
        _compare_ledger(ledger, model)


@given(st.integers(0, 9), st.integers(0, 300), st.integers(0, 40), st.data())
def test_a_copy_of_the_ledger_holds_the_states_of_the_moment_it_was_begun(head, count, grown, data):
    seqs = st.lists(st.integers(head, head + count + grown), max_size=60, unique=True)
    ledger = Ledger(head)
    ledger.grow(count)
    ledger.settle(np.array(data.draw(seqs), np.int64), State.RELEASED)
    expected = ledger.encode()
    copy = ledger.begin_copy()
    ledger.grow(grown)
    for state in (State.CANCELLED, State.MOVED):
        ledger.settle(np.array(data.draw(seqs), np.int64), state)
    assert b"".join(copy.parts()) == expected


def test_a_ledger_is_copied_beside_a_writer():
    ledger, count = Ledger(), 400_000
    ledger.grow(count)
    ledger.settle(np.arange(0, count, 3), State.RELEASED)
    expected = ledger.encode()
    begun = threading.Event()

    def settle_all():
        for first in range(1, count, 400):
            ledger.settle(np.arange(first, min(count, first + 400)), State.CANCELLED)
            begun.set()

    copy, writer = ledger.begin_copy(), threading.Thread(target=settle_all)
    writer.start()
    assert begun.wait(120)
    assert b"".join(copy.parts()) == expected
    writer.join()
    assert not ledger.pending_mask(np.arange(1, count)).any()


def _compare_ledger(ledger, model):
    known = sorted(model)
    assert list(range(ledger.head_seq, ledger.next_seq)) == known
    assert [ledger.state(seq) for seq in known] == [model[seq] for seq in known]
    assert ledger.range_states(ledger.head_seq, ledger.next_seq).tolist() == [model[seq] for seq in known]
    middle = (ledger.head_seq + ledger.next_seq) // 2
    assert ledger.range_states(middle, ledger.next_seq).tolist() == [
        model[seq] for seq in known if seq >= middle
    ]
    pending = [seq for seq in known if model[seq] is State.PENDING]
    assert ledger.first_pending() == (pending[0] if pending else ledger.next_seq)
    assert not ledger.knows(ledger.next_seq)
    assert not ledger.pending_mask(np.array([-1, ledger.head_seq - 1, ledger.next_seq])).any()


# -- find index -----------------------------------------------------------------------------------

_FIND_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(0, 25), min_size=1, max_size=30)),
        st.tuples(st.just("flush")),
        st.tuples(st.just("merge")),
        st.tuples(st.just("reopen")),
        st.tuples(st.just("cut"), st.integers(0, 3)),
    ),
    max_size=25,
)


@settings(deadline=None)
@given(_FIND_STEPS, st.sampled_from([4, 1024]), st.sampled_from([8, 1 << 14]), st.sampled_from([1, 16]))
def test_the_find_index_is_a_dictionary_of_refs(steps, fresh_max, large_run, cells_per_pair):
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(find_memory, "_FRESH_PAIRS_MAX", fresh_max)
        patch.setattr(find_memory, "_LARGE_RUN", large_run)
        patch.setattr(find_memory, "_CELLS_PER_PAIR", cells_per_pair)
        _FindModel(Path(folder)).run(steps)


class _FindModel:
    """A find index beside the list of all pairs, each with the log offset it came from."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pairs: list[tuple[int, int, int]] = []  # offset, hash, ref
        self.end = self.head = 0
        self.index = self._open()

    def _open(self) -> FindIndex:
        index = FindIndex(RealDisk(), self.directory, Repairs(), memory_pairs_max=8, file_pairs_max=200)
        index.open(self.head)
        return index

    def run(self, steps) -> None:
        for step in steps:
            getattr(self, step[0])(*step[1:])
            self.compare()

    def add(self, hashes) -> None:
        refs = [len(self.pairs) + i for i in range(len(hashes))]
        self.pairs += [(self.end, hashed, ref) for hashed, ref in zip(hashes, refs, strict=True)]
        self.index.add(np.array(hashes, np.uint64), np.array(refs, np.uint64))
        self.end += 8

    def flush(self) -> None:
        if self.index.memory_is_full:
            self.index.begin_flush(self.end)
            self.compare()
            self.index.end_flush(self.index.write_flushing())

    def merge(self) -> None:
        while (pair := self.index.mergeable()) is not None:
            merged = self.index.write_merged(pair)
            assert isinstance(merged, RunFile)
            self.index.replace(pair, merged)
            self.index.remove(pair)

    def reopen(self) -> None:
        self.index.close()
        self.index = self._open()
        for offset, hashed, ref in self.pairs:  # as recovery does
            if offset >= self.index.covers:
                self.index.add(np.array([hashed], np.uint64), np.array([ref], np.uint64))

    def cut(self, frames) -> None:
        self.head = min(self.end, self.head + 8 * frames)
        self.index.cut_head(self.head)

    def compare(self) -> None:
        expected = defaultdict(set)
        for offset, hashed, ref in self.pairs:
            if offset >= self.head:
                expected[hashed].add(ref)
        every = {ref for _, _, ref in self.pairs}
        found_at, refs = self.index.find_many(np.arange(26, dtype=np.uint64))
        got = defaultdict(list)
        for at, ref in zip(found_at.tolist(), refs.tolist(), strict=True):
            got[at].append(ref)
        for hashed in range(26):
            assert expected[hashed] <= set(got[hashed]) <= every, "lost, or never added"
            assert got[hashed] == sorted(set(got[hashed])), "not ascending, or twice"
            assert self.index.find(hashed).tolist() == got[hashed]


# -- due counts, totals ---------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 10**13)), max_size=60), st.data())
def test_due_counts_are_a_counter(messages, data):
    counts, model = DueCounts(), Counter()
    _count(counts, messages, 1)
    model.update((topic, due // 60_000) for topic, due in messages)
    gone = (
        data.draw(st.lists(st.sampled_from(messages), unique_by=id, max_size=len(messages)))
        if messages
        else []
    )
    gone = [message for message in messages if message in gone]
    _count(counts, gone, -1)
    model.subtract((topic, due // 60_000) for topic, due in gone)
    model = +model
    for counted in (counts, DueCounts.decode(counts.encode())):
        for topic in range(1, 5):
            assert counted.pending(topic) == sum(n for (t, _), n in model.items() if t == topic)
            low, high = data.draw(st.tuples(st.integers(0, 10**8), st.integers(0, 2 * 10**8)))
            expected = {m: n for (t, m), n in model.items() if t == topic and low <= m < high}
            assert counted.minutes(topic, low, high) == expected
        assert sum(counted.minutes(None, 0, 10**9).values()) == sum(model.values())


def _count(counts, messages, sign):
    topics = np.array([m[0] for m in messages], np.uint32)
    counts.add(topics, np.array([m[1] for m in messages], np.int64), sign)


def test_a_topic_with_many_minutes_answers_a_short_horizon():
    counts = DueCounts()
    _count(counts, [(1, minute * 60_000) for minute in range(500)], 1)
    assert counts.minutes(1, 10, 13) == {10: 1, 11: 1, 12: 1}


@given(
    st.lists(
        st.tuples(st.sampled_from(["sent", "released", "cancelled"]), st.integers(1, 5), st.integers(0, 9)),
        max_size=30,
    )
)
def test_totals_add_up_and_survive_their_dictionary(counted):
    totals, model = Totals(), Counter()
    for what, topic, count in counted:
        ids = np.array([topic], np.uint32)
        if what == "sent":
            totals.count_sent(np.full(count, topic, np.uint32))
        elif what == "released":
            totals.count_released(ids, np.array([count]))
        else:
            totals.count_cancelled(ids, np.array([count]))
        model[what] += count
    for each in (totals, Totals.from_dict(totals.as_dict())):
        assert each.overall() == (model["sent"], model["released"], model["cancelled"])


# -- hashing --------------------------------------------------------------------------------------

_TEXTS = st.lists(st.binary(max_size=40), max_size=20)


@given(_TEXTS, st.binary(max_size=9), st.integers(0, 2**64 - 1))
def test_a_slice_hashes_like_the_same_bytes_alone(texts, padding, seed):
    seeds = np.full(len(texts), seed, np.uint64)
    whole = hash_texts(texts, seeds)
    assert whole.tolist() == [int(hash_texts([t], np.array([seed], np.uint64))[0]) for t in texts]
    data = np.frombuffer(padding.join([b"", *texts, b""]), np.uint8)
    lengths = np.array([len(t) for t in texts], np.int64)
    starts = np.cumsum(lengths + len(padding)) - lengths
    assert hash_slices(data, starts.astype(np.int64), lengths, seeds).tolist() == whole.tolist()


@given(st.lists(st.binary(max_size=20), unique=True, min_size=2, max_size=200))
def test_different_texts_hash_differently(texts):
    assert len(set(hash_texts(texts, np.zeros(len(texts), np.uint64)).tolist())) == len(texts)


def test_hashes_are_what_they_always_were():
    """They lie on disk: a change needs a new format."""
    texts = [b"", b"a", b"12345678", b"123456789", "ключ".encode(), bytes(17)]
    assert hash_texts(texts, np.arange(6, dtype=np.uint64)).tolist() == _GOLDEN_HASHES
    assert (id_hash(7, "order-1"), key_hash(7, "order-1"), id_hash(8, "order-1")) == _GOLDEN_NAMED


_GOLDEN_HASHES = [
    0,
    16841810540106768121,
    6904448250270014042,
    1951833238396966708,
    1426092159244457791,
    6505840575951952563,
]
_GOLDEN_NAMED = (17813753506875455484, 18405825082286898248, 14087989638709499452)


# -- offsets --------------------------------------------------------------------------------------

_SENDS = st.lists(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), max_size=30), max_size=8)


@given(_SENDS)
def test_queue_offsets_are_given_out_densely_and_in_order(batches):
    topics, model = TopicTable(), Counter()
    for topic_id in range(1, 5):
        topics.put(Topic(topic_id, f"t{topic_id}", TopicType.MIXED, 3))
    for batch in batches:
        ids, queues = (np.array([m[i] for m in batch], np.int64) for i in (0, 1))
        partitions = topics.partitions(ids, queues)
        offsets = topics.plan_offsets(partitions)
        expected = []
        for message in batch:
            expected.append(model[message])
            model[message] += 1
        assert offsets.tolist() == expected
        topics.take_offsets(partitions, offsets + 1)
    for topic in topics:
        assert topics.offsets_of(topic) == [model[topic.id, queue] for queue in range(3)]


@given(st.lists(st.integers(0, 70_000), max_size=60))
def test_grouping_brings_equal_partitions_together_in_their_order(partitions):
    order, starts, counts = grouped(np.array(partitions, np.int64))
    flat = [partitions[i] for i in order.tolist()]
    assert flat == sorted(partitions)
    assert all(a < b for a, b in pairwise(order.tolist()) if partitions[a] == partitions[b])
    assert [flat[start] for start in starts.tolist()] == sorted(set(partitions))
    assert counts.tolist() == [n for _, n in sorted(Counter(partitions).items())]


# -- retention ------------------------------------------------------------------------------------

_SEGMENTS = st.lists(st.tuples(st.integers(1, 100), st.integers(0, 50), st.floats(0, 1)), max_size=12)


@given(_SEGMENTS, st.integers(0, 700), st.integers(0, 300), st.one_of(st.none(), st.integers(0, 1_300)))
def test_the_cut_takes_only_old_segments_that_are_mostly_dead_and_nothing_leased(
    parts, now_ms, retention_ms, leased
):
    segments, start, sealed = [], 0, 0
    for size, pause, alive in parts:
        sealed += pause
        segments.append(SegmentUse(start, start + size, sealed, int(size * alive)))
        start += size
    cut = cut_offset(segments, now_ms, retention_ms, leased)
    gone = [s for s in segments if s.end <= cut]
    assert cut == (gone[-1].end if gone else 0)
    assert all(s.sealed_at_ms <= now_ms - retention_ms for s in gone)
    assert leased is None or cut <= leased
    if gone:
        assert 2 * sum(s.live_bytes for s in gone) < sum(s.end - s.start for s in gone)
    for further in range(len(gone) + 1, len(segments) + 1):
        more = segments[:further]
        assert (
            more[-1].sealed_at_ms > now_ms - retention_ms
            or (leased is not None and more[-1].end > leased)
            or 2 * sum(s.live_bytes for s in more) >= sum(s.end - s.start for s in more)
        ), "more could have gone"
