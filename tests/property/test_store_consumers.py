"""Consumer state: what a log of changes replays to is what was there, and it obeys a simple model."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.store.consumers.consumer_log import ConsumerLog, change_rows
from tidemill.store.consumers.consumer_state import (
    ACT_CHANGE,
    ACT_CURSOR,
    ACT_SETTLE,
    ACT_SKIP,
    ACT_TAKE,
    CHANGE,
    ConsumerState,
    Group,
    Progress,
)
from tidemill.store.formats.frames import Settlement
from tidemill.testing import FaultyDisk

_GROUP_QUEUES = st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(0, 1))
_CHANGES = st.tuples(
    st.sampled_from([ACT_TAKE, ACT_TAKE, ACT_SETTLE, ACT_CHANGE, ACT_CURSOR, ACT_SKIP]),
    _GROUP_QUEUES,
    st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True),
    st.integers(1, 5),
    st.integers(0, 1_000),
)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("change"), _CHANGES),
        st.tuples(st.just("group"), st.integers(1, 2), st.integers(1, 9)),
        st.tuples(st.just("settle"), st.integers(1, 2), st.integers(0, 12)),
        st.tuples(st.just("save")),
        st.tuples(st.just("kill"), st.booleans()),
    ),
    max_size=25,
)


class _Model:
    """The log under test and the settlements that the commit log would replay."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.disk = FaultyDisk(3)
        self.commit_log: list[tuple[int, Settlement]] = []
        self.log = self._open()

    def _open(self) -> ConsumerLog:
        log = ConsumerLog(self.disk, self.directory, segment_bytes=4096, in_flight_max=1, is_sync=True)
        log.recover()
        log.settle_again(self.commit_log)
        return log

    def change(self, change) -> None:
        act, group_queue, offsets, attempt, visible_at_ms = change
        self.log.wait(self.log.append(change_rows(act, group_queue, offsets, attempt, visible_at_ms), 0))
        if act == ACT_CURSOR:  # a reset: settlements from before it must not be replayed over it
            self.log.save(len(self.commit_log))

    def group(self, group_id, attempts_max) -> None:
        self.log.wait(self.log.put_group(Group(group_id, f"g{group_id}", attempts_max), 0))

    def settle(self, group_id, offset) -> None:
        settlement = Settlement(f"g{group_id}", 1, 0, offset)
        if self.log.state.group(settlement.group) is not None:
            self.commit_log.append((len(self.commit_log), settlement))
            self.log.settle_from_commit_log([settlement])

    def save(self) -> None:
        self.log.save(len(self.commit_log))

    def kill(self, power_cut) -> None:
        before = _plain(self.log.state)
        self.disk = self.disk.crash(power_cut=power_cut)
        self.log = self._open()
        after = _plain(self.log.state)
        assert after["groups"] == before["groups"]
        assert _settled_at_least(before, after)


def _plain(state: ConsumerState):
    saved = state.as_dict()
    group_queues = {
        tuple(group_queue[:3]): (group_queue[3], {t[0]: tuple(t[1:]) for t in group_queue[4]})
        for group_queue in saved["lanes"]
    }
    return {"groups": saved["groups"], "lanes": group_queues}


def _settled_at_least(before, after) -> bool:
    """Equal, but that a settlement of the commit log may have come after a later take of the same offset."""
    for group_queue, (next_offset, taken) in before["lanes"].items():
        after_next, after_taken = after["lanes"][group_queue]
        if after_next != next_offset or not after_taken.items() <= taken.items():
            return False
    return before["lanes"].keys() == after["lanes"].keys()


@settings(deadline=None)
@given(_STEPS)
def test_replaying_the_log_gives_the_state_before(steps):
    with tempfile.TemporaryDirectory() as folder:
        model = _Model(Path(folder))
        for step in steps:
            getattr(model, step[0])(*step[1:])
        model.kill(False)
        model.disk.close()


@given(st.lists(_CHANGES, max_size=40))
def test_the_state_is_the_same_from_its_dictionary(changes):
    state = ConsumerState()
    for act, group_queue, offsets, attempt, visible_at_ms in changes:
        state.apply(change_rows(act, group_queue, offsets, attempt, visible_at_ms))
    again = ConsumerState.from_dict(state.as_dict())
    assert _plain(again) == _plain(state)
    for group_queue, progress in state.group_queues():
        assert all(offset >= 0 for offset in progress.taken)
        assert progress.first_unsettled <= progress.next_offset
        assert sorted(again.progress(group_queue).visible_again(500, 99)) == sorted(
            progress.visible_again(500, 99)
        )


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 9), st.integers(0, 100)),
            st.tuples(st.just("drop"), st.integers(0, 9), st.just(0)),
        ),
        max_size=40,
    ),
    st.integers(0, 100),
    st.integers(1, 12),
)
def test_what_is_visible_again_comes_in_order_of_its_lease_and_stays_until_taken(steps, now_ms, limit):
    progress, model = Progress(20), {}
    for act, offset, visible_at_ms in steps:
        if act == "put":
            progress.put(offset, 1, visible_at_ms)
            model[offset] = visible_at_ms
        else:
            progress.taken.pop(offset, None)
            model.pop(offset, None)
    expected = sorted((at, offset) for offset, at in model.items() if at <= now_ms)
    for _ in range(2):
        assert progress.visible_again(now_ms, limit) == [offset for _, offset in expected][:limit]
    assert progress.next_visible_ms() == min(model.values(), default=None)
    assert progress.first_unsettled == min(model, default=20)


@given(st.lists(_CHANGES, max_size=20), st.integers(0, 8))
def test_clamping_forgets_what_lies_beyond_the_end(changes, end):
    state = ConsumerState()
    for act, group_queue, offsets, attempt, visible_at_ms in changes:
        state.apply(change_rows(act, group_queue, offsets, attempt, visible_at_ms))
    for group_queue, progress in state.group_queues():
        state.clamp(group_queue, end)
        assert progress.next_offset <= end
        assert all(offset < end for offset in progress.taken)
    state.forget_topic(1)
    assert all(group_queue[1] == 2 for group_queue, _ in state.group_queues())


def test_a_change_takes_thirty_two_bytes():
    assert np.zeros(1, CHANGE).nbytes == 32


def test_a_settlement_from_before_a_reset_is_not_replayed_over_it(tmp_path):
    model, group_queue = _Model(tmp_path), (1, 1, 0)
    model.group(1, 9)
    model.change((ACT_TAKE, group_queue, [5], 1, 100))
    model.settle(1, 5)
    model.kill(False)
    assert model.log.state.progress(group_queue).taken == {}
    model.change((ACT_CURSOR, group_queue, [0], 0, 0))
    model.change((ACT_TAKE, group_queue, [5], 1, 100))
    model.kill(True)
    assert model.log.state.progress(group_queue).taken == {5: (1, 100)}
    model.disk.close()
