"""The whole engine against a heap: the same messages, in the same order, each at its millisecond."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.hypothesis_examples import examples
from helpers.small_broker import SmallBroker
from tidemill.core.config import TIMER_STORES
from tidemill.core.model import CancelAnswer, Draft, Handle, TopicType
from tidemill.testing.heap_timer import HeapTimer
from tidemill.timer.settings import TimerSettings

# Near, on both sides of the lead, of the roll window and of the ring; past and zero.
_DELAYS = st.one_of(
    st.sampled_from(
        [-5_000, 0, 1, 999, 1_000, 29_999, 30_000, 30_001, 64_000, 127_000, 128_000, 129_000, 10**9]
    ),
    st.integers(-1_000, 400_000),
)
_STEPS = st.one_of(
    st.tuples(st.just("send"), st.lists(_DELAYS, min_size=1, max_size=6)),
    st.tuples(st.just("cancel"), st.integers(0, 50)),
    st.tuples(st.just("move"), st.integers(0, 50), st.integers(-200_000, 400_000)),
    st.tuples(st.just("advance"), st.sampled_from([0, 1, 500, 7_000, 31_000, 130_000, 600_000])),
    st.tuples(st.just("kill"), st.booleans(), st.sampled_from([0, 1, 45_000, 500_000])),
    st.tuples(st.just("close"), st.sampled_from(["", "timer", "index", "store"])),
    st.tuples(st.just("checkpoint")),
)
_TIMER = TimerSettings(
    tick_ms=1000, shards=2, slots=256, roll_window_slots=64, segment_bytes=1024, wheel_sync_bytes=1024
)


class _Pair:
    """A broker and a heap with the same input."""

    def __init__(self, directory: Path, timer_store: str = "wheel") -> None:
        self.small = SmallBroker(directory / "data", timer=_TIMER, timer_store=timer_store)
        self.small.broker.topics.create("t", TopicType.MIXED, 1)
        self.heap = HeapTimer()
        self.handles: list[Handle] = []
        self.expected: list[tuple[int, int]] = []
        self.ids: dict[int, str] = {}

    def take(self, step: tuple) -> None:
        getattr(self, step[0])(*step[1:])

    def send(self, delays: list[int]) -> None:
        now_ms = self.small.clock.now_ms()  # a time may have passed, a delay is never negative
        drafts = [
            Draft("t", b"", delay_ms=delay) if delay >= 0 else Draft("t", b"", deliver_at_ms=now_ms + delay)
            for delay in delays
        ]
        for receipt in self.small.broker.send(drafts):
            self._wait_for(receipt.handle, receipt.deliver_at_ms)

    def _wait_for(self, handle: Handle, deliver_at_ms: int) -> None:
        self.heap.add(handle.seq, deliver_at_ms)
        self.handles.append(handle)
        self.ids[handle.seq] = handle.id

    def cancel(self, index: int) -> None:
        if self.handles:
            handle = self.handles[index % len(self.handles)]
            (answer,) = self.small.broker.cancel([handle])
            current = self._current(handle)
            assert (answer is CancelAnswer.CANCELLED) == (current is not None)
            if current is not None:
                self.heap.cancel(current)

    def move(self, index: int, by_ms: int) -> None:
        if self.handles:
            handle = self.handles[index % len(self.handles)]
            current = self._current(handle)
            (answer,) = self.small.broker.reschedule([handle], by_ms=by_ms)
            assert (answer.answer is None) == (current is not None)
            if current is not None:
                self.heap.cancel(current)
                self._wait_for(answer.handle, answer.deliver_at_ms)

    def _current(self, handle: Handle) -> int | None:
        """The seq under which the handle's message waits, if it does."""
        waiting = [
            seq for seq, message_id in self.ids.items() if message_id == handle.id and seq in self.heap
        ]
        assert len(waiting) <= 1
        return waiting[0] if waiting else None

    def advance(self, ms: int) -> None:
        self._expect()
        self.small.advance(ms)
        self._expect()
        self.compare()

    def kill(self, power_cut: bool, downtime_ms: int) -> None:
        self.small.kill(power_cut=power_cut)
        self.small.clock.advance(downtime_ms)
        self.small.open()

    def close(self, deleted: str) -> None:
        self.small.close()
        if deleted == "store":  # the operator changes the timer store
            settings = self.small.settings
            other = next(name for name in TIMER_STORES if name != settings.timer_store)
            self.small.settings = replace(settings, timer_store=other)
        elif deleted:
            self.small.delete(deleted)
        self.small.open()

    def checkpoint(self) -> None:
        self.small.broker.store.checkpoint()

    def _expect(self) -> None:
        self.expected += self.heap.advance(self.small.clock.now_ms() + 1)

    def compare(self) -> None:
        rows = self.small.broker.store.queues.read((self.small.broker.topics.require("t").id, 0), 0, 1 << 40)
        assert list(zip(rows["deliver_at_ms"].tolist(), rows["seq"].tolist(), strict=True)) == self.expected
        assert (rows["released_at_ms"] >= rows["deliver_at_ms"]).all()


@pytest.mark.parametrize("timer_store", TIMER_STORES)
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_STEPS, min_size=3, max_size=18))
def test_the_engine_does_what_a_heap_does(timer_store, steps):
    with tempfile.TemporaryDirectory() as folder:
        pair = _Pair(Path(folder), timer_store)
        for step in steps:
            pair.take(step)
        pair.advance(700_000)
        assert pair.small.broker.status().pending == len(pair.heap)
        pair.small.check()
        pair.small.close()


@pytest.mark.parametrize("timer_store", TIMER_STORES)
def test_equal_due_times_keep_their_order_of_arrival(tmp_path, timer_store):
    pair = _Pair(tmp_path, timer_store)
    pair.send([90_000] * 30)
    pair.advance(65_000)  # the far ones are with the wheel, the next are near
    pair.send([25_000] * 30)
    pair.advance(25_000)
    assert len(pair.expected) == 60
    pair.small.check()
    pair.small.close()


@pytest.mark.parametrize("timer_store", TIMER_STORES)
def test_a_pipeline_that_stood_still_for_fifteen_days_lets_everything_go_in_order(tmp_path, timer_store):
    pair = _Pair(tmp_path, timer_store)
    pair.send([60_000 * i for i in range(1, 200)])
    pair.kill(False, 15 * 86_400_000)
    pair.advance(0)
    assert len(pair.expected) == 199
    pair.small.check()
    pair.small.close()
