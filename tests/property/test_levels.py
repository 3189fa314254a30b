"""Level queues against a sorted list, and the engine with levels against a heap."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.hypothesis_examples import examples
from helpers.small_broker import SmallBroker
from tidemill.core.model import CancelAnswer, Draft, Handle, TopicType
from tidemill.store.formats.entry_format import ENTRY, FLAG_LEVEL, FLAG_NEAR
from tidemill.store.level_queues import LevelQueues
from tidemill.testing.heap_timer import HeapTimer

_DELAYS_MS = (1_000, 5_000, 5_000, 60_000)

_QUEUE_STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"),
            st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 3)), min_size=1, max_size=150),
        ),
        st.tuples(st.just("take"), st.integers(0, 20_000), st.integers(1, 40)),
        st.tuples(st.just("settle"), st.integers(0, 1 << 30)),
        st.tuples(st.just("tick"), st.integers(-5_000, 30_000)),
        st.tuples(st.just("cut")),
        st.tuples(st.just("look")),
    ),
    max_size=40,
)


class _Sorted:
    """Level queues beside a plain dictionary of what waits."""

    def __init__(self) -> None:
        self.waiting: dict[int, tuple[int, int]] = {}  # seq -> due, delay
        self.untaken: set[int] = set()
        self.entries: dict[int, np.ndarray] = {}
        self.queues = LevelQueues(lambda seqs: np.array([s in self.waiting for s in seqs.tolist()], np.bool_))
        self.now_ms = 1_000_000
        self.next_seq = 7

    def add(self, rows) -> None:
        entries = np.zeros(len(rows), ENTRY)
        seqs = np.arange(self.next_seq, self.next_seq + len(rows))
        for index, (level, jitter) in enumerate(rows):
            delay = _DELAYS_MS[level - 1] if level else 777
            stored = self.now_ms + jitter
            entries[index]["stored_at_ms"], entries[index]["deliver_at_ms"] = stored, stored + delay
            entries[index]["flags"] = FLAG_LEVEL if level else FLAG_NEAR
            entries[index]["level"] = level
            if level:
                self.waiting[int(seqs[index])] = (stored + delay, delay)
                self.untaken.add(int(seqs[index]))
                self.entries[int(seqs[index])] = entries[index : index + 1]
        self.queues.add(seqs, entries)
        self.next_seq += len(rows)

    def take(self, ahead_ms, limit) -> None:
        now_ms = self.now_ms + ahead_ms
        dues, seqs = self.queues.take_due(now_ms, limit)
        due = sorted(
            (self.waiting[s][0], s)
            for s in self.untaken & self.waiting.keys()
            if self.waiting[s][0] <= now_ms
        )
        came = [(d, s) for d, s in zip(dues.tolist(), seqs.tolist(), strict=True) if s in self.waiting]
        assert len(seqs) <= limit
        assert sorted(came) == due[: len(came)]
        assert len(came) == len(due) or len(seqs) == limit
        self.untaken -= set(seqs.tolist())

    def settle(self, choice) -> None:
        if self.waiting:
            seqs = sorted(self.waiting)[choice % len(self.waiting) :][:20]
            for seq in seqs:
                del self.waiting[seq]
            self.queues.settled(np.concatenate([self.entries[seq] for seq in seqs]))

    def tick(self, ms) -> None:
        self.now_ms += ms

    def cut(self) -> None:
        self.queues.cut_head(min(self.waiting, default=self.next_seq))

    def look(self) -> None:
        by_delay: dict[int, list[int]] = {}
        for due, delay in self.waiting.values():
            by_delay.setdefault(delay, []).append(due)
        found = {
            view.delay_ms: (view.waiting, view.next_due_ms) for view in self.queues.view() if view.waiting
        }
        assert found == {delay: (len(dues), min(dues)) for delay, dues in by_delay.items()}
        assert self.queues.waiting == len(self.waiting)
        assert self.queues.first_waiting_seq() == min(self.waiting, default=None)
        untaken = [self.waiting[seq][0] for seq in self.untaken & self.waiting.keys()]
        if untaken:
            assert self.queues.next_due_ms is not None
            assert self.queues.next_due_ms <= min(untaken)


@settings(deadline=None)
@given(_QUEUE_STEPS)
def test_level_queues_are_a_sorted_list(steps):
    model = _Sorted()
    for step in steps:
        getattr(model, step[0])(*step[1:])
    model.look()
    while model.untaken & model.waiting.keys():
        model.take(10_000_000, 1 << 20)


_TABLES = st.sampled_from(["1s 5s 10s 30s 1m", "2s", "3s 1s 2s", "1m 1m 30s", "1s 29s 30s 31s 2m 1h"])
_STEPS = st.one_of(
    st.tuples(st.just("send"), st.lists(st.integers(0, 8), min_size=1, max_size=6)),
    st.tuples(st.just("delay"), st.sampled_from([0, 1_000, 30_000, 60_000, 128_000])),
    st.tuples(st.just("cancel"), st.integers(0, 50)),
    st.tuples(st.just("move"), st.integers(0, 50), st.integers(-200_000, 400_000)),
    st.tuples(st.just("advance"), st.sampled_from([0, 1, 500, 7_000, 31_000, 600_000])),
    st.tuples(st.just("leap"), st.sampled_from([-90_000, -1_000, -1, 1, 40_000, 4_000_000])),
    st.tuples(st.just("table"), _TABLES),
    st.tuples(st.just("kill"), st.booleans()),
    st.tuples(st.just("checkpoint")),
)


class _Pair:
    """A broker with levels and a heap with the same input."""

    def __init__(self, directory: Path, commits_in_flight: int, release_rows_max: int) -> None:
        self.small = SmallBroker(
            directory / "data",
            levels="1s 5s 10s 30s 1m",
            commits_in_flight=commits_in_flight,
            release_rows_max=release_rows_max,
        )
        self.small.broker.topics.create("t", TopicType.MIXED, 1)
        self.heap = HeapTimer()
        self.handles: list[Handle] = []
        self.seqs: dict[str, int] = {}
        self.expected: list[tuple[int, int]] = []

    def send(self, levels) -> None:
        delays = self.small.broker.settings.level_delays_ms
        receipts = self.small.broker.send([Draft("t", b"", level=level) for level in levels if level])
        for level, receipt in zip([level for level in levels if level], receipts, strict=True):
            assert receipt.deliver_at_ms == self.small.clock.now_ms() + delays[min(level, len(delays)) - 1]
            self._wait_for(receipt.handle, receipt.deliver_at_ms)

    def delay(self, ms) -> None:
        (receipt,) = self.small.broker.send([Draft("t", b"", delay_ms=ms)])
        self._wait_for(receipt.handle, receipt.deliver_at_ms)

    def _wait_for(self, handle, due_ms) -> None:
        self.heap.add(handle.seq, due_ms)
        self.handles.append(handle)
        self.seqs[handle.id] = handle.seq

    def cancel(self, index) -> None:
        if self.handles:
            handle = self.handles[index % len(self.handles)]
            (answer,) = self.small.broker.cancel([handle])
            assert (answer is CancelAnswer.CANCELLED) == self.heap.cancel(self.seqs[handle.id])

    def move(self, index, by_ms) -> None:
        if self.handles:
            handle = self.handles[index % len(self.handles)]
            (answer,) = self.small.broker.reschedule([handle], by_ms=by_ms)
            assert (answer.answer is None) == self.heap.cancel(self.seqs[handle.id])
            if answer.answer is None:
                self._wait_for(answer.handle, answer.deliver_at_ms)

    def advance(self, ms) -> None:
        for span in (0, ms):
            self.small.advance(span)
            self.expected += self.heap.advance(self.small.clock.now_ms() + 1)
        rows = self.small.broker.store.queues.read((self.small.broker.topics.require("t").id, 0), 0, 1 << 40)
        assert list(zip(rows["deliver_at_ms"].tolist(), rows["seq"].tolist(), strict=True)) == self.expected
        assert (rows["released_at_ms"] >= rows["deliver_at_ms"]).all()

    def leap(self, ms) -> None:
        self.advance(0)
        self.small.clock.leap_ms(ms)
        self.advance(0)

    def table(self, levels) -> None:
        self.small.reopen(levels=levels)

    def kill(self, power_cut) -> None:
        self.small.kill_and_open(power_cut=power_cut)

    def checkpoint(self) -> None:
        self.small.broker.store.checkpoint()


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(_STEPS, min_size=3, max_size=20), st.sampled_from([1, 2, 8]), st.sampled_from([1, 3, 1 << 18])
)
def test_levels_do_what_a_heap_does(steps, commits_in_flight, release_rows_max):
    """In this order, with any number of commits in flight and however few fit one release record."""
    with tempfile.TemporaryDirectory() as folder:
        pair = _Pair(Path(folder), commits_in_flight, release_rows_max)
        for step in steps:
            getattr(pair, step[0])(*step[1:])
        pair.advance(5_000_000)
        assert pair.small.broker.status().pending == len(pair.heap)
        assert sum(view.waiting for view in pair.small.broker.status().levels) <= len(pair.heap)
        pair.small.check()
        pair.small.close()
