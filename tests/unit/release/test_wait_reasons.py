"""Releases that wait say what for, and go when it is gone."""

from __future__ import annotations

import pytest

from helpers.small_broker import START_MS
from tidemill.broker.query.wait_views import WaitView, reason_of
from tidemill.core.errors import DiskFullError
from tidemill.core.model import Draft
from tidemill.release.backlogs import WaitReason
from tidemill.store.formats.entry_format import FLAG_FIFO, FLAG_NEAR


def _waits(small) -> list[WaitView]:
    return small.broker.status().waits


def _send(small, topic: str, count: int) -> None:
    small.broker.send([Draft(topic, b"%d" % number, level=1) for number in range(count)])


def test_a_paused_and_a_limited_topic_are_named_and_hold_up_no_other_of_their_level(small):
    for topic, count in (("still", 3), ("slow", 5), ("free", 4)):
        _send(small, topic, count)
    small.broker.topics.change("still", is_paused=True)
    small.broker.topics.change("slow", release_rate_max=2)
    assert _waits(small) == []
    small.clock.advance(1_000)
    small.broker.run_due()
    assert len(small.bodies("free")) == 4
    assert _waits(small) == [
        WaitView(WaitReason.PAUSE, "still", 3),
        WaitView(WaitReason.RATE, "slow", 3),
    ]
    small.broker.topics.change("still", is_paused=False)
    small.advance(5_000)
    assert (_waits(small), len(small.bodies("still")), len(small.bodies("slow"))) == ([], 3, 5)


def test_a_fifo_message_waits_for_the_timer(small):
    small.send("t", b"far", deliver_at_ms=START_MS + 40_000, message_group="g")
    small.clock.advance(39_999)
    small.send("t", b"near", deliver_at_ms=START_MS + 40_001, message_group="g")
    small.clock.advance(5)
    small.broker._release_service.run_once()
    assert _waits(small) == [WaitView(WaitReason.ORDER, "", 1)]
    small.broker.run_due()
    small.broker.run_due()
    assert _waits(small) == []


def test_a_record_without_room_waits_and_nothing_is_lost(small, monkeypatch):
    _send(small, "t", 3)
    small.clock.advance(1_000)

    def no_room(*_):
        raise DiskFullError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(small.broker.store.writer, "release", no_room)
        with pytest.raises(DiskFullError):
            small.broker._release_service.run_once()
        assert _waits(small) == [WaitView(WaitReason.DISK_SPACE, "", 3)]
    small.broker._release_service.run_once()
    assert (_waits(small), small.bodies("t")) == ([], [b"0", b"1", b"2"])


def test_a_full_window_waits_for_commits(make_small, monkeypatch):
    small = make_small(queues_per_topic=1, release_rows_max=1, commits_in_flight=3)
    _send(small, "t", 5)
    small.clock.advance(1_000)
    window = small.broker.releaser._window
    finish, seen = window._finish, []

    def looked_at(appended):
        seen.append(_waits(small))
        finish(appended)

    monkeypatch.setattr(window, "_finish", looked_at)
    small.broker._release_service.run_once()
    assert seen[0] == [WaitView(WaitReason.COMMIT, "", 3)]
    assert seen[-1] == []  # at the end of the step nothing presses any more
    assert (_waits(small), len(small.bodies("t"))) == ([], 5)


def test_a_leap_of_the_clock_is_named_while_it_holds(small):
    small.broker._guard.is_simulated = False
    small.broker.run_due()
    small.send("t", b"x", delay_ms=20_000)
    small.clock.leap_ms(100_000)
    small.broker.run_due()
    assert _waits(small) == [WaitView(WaitReason.CLOCK, "", 1)]
    small.clock.advance(10_000)
    small.broker.run_due()
    assert (_waits(small), small.bodies("t")) == ([], [b"x"])


def _reasons(small, topic: str) -> list[str | None]:
    return [message.waits_for for message in small.broker.views.pending(topic_name=topic)]


def test_every_message_that_is_due_says_what_it_waits_for(small) -> None:
    _send(small, "still", 1)
    _send(small, "free", 1)
    small.send("still", b"later", delay_ms=60_000)
    small.broker.topics.change("still", is_paused=True)
    assert (_reasons(small, "still"), _reasons(small, "free")) == ([None, None], [None])
    small.clock.advance(1_000)
    assert _reasons(small, "free") == [None]  # no step was taken, and nothing holds it back
    small.broker.switches.hold("releases")
    small.broker.run_due()
    assert (_reasons(small, "still"), _reasons(small, "free")) == (["pause", None], ["hold"])
    small.broker.switches.resume("releases")
    small.broker.run_due()
    assert (_reasons(small, "still"), _reasons(small, "free")) == (["pause", None], [])


def test_only_what_was_not_absorbed_waits_for_a_resume_of_absorbing(small) -> None:
    small.send("t", b"near", level=1)
    small.broker.topics.change("t", release_rate_max=1)
    small.broker.switches.hold("absorbing")
    small.send("far", b"far", delay_ms=40_000)
    small.advance(100_000)
    assert _reasons(small, "far") == ["absorb"]
    assert _reasons(small, "t") == []


_ORDER, _COMMIT = WaitView(WaitReason.ORDER, "", 1), WaitView(WaitReason.COMMIT, "", 1)


@pytest.mark.parametrize(
    ("flags", "waits", "reason"),
    [
        (0, [], None),
        (0, [WaitView(WaitReason.PAUSE, "other", 1)], None),
        (0, [WaitView(WaitReason.RATE, "t", 1), _COMMIT], WaitReason.RATE),
        (0, [_ORDER, _COMMIT], WaitReason.COMMIT),
        (FLAG_FIFO, [_COMMIT, _ORDER], WaitReason.ORDER),
        (FLAG_NEAR, [WaitView(WaitReason.ABSORB, "", 1)], None),
        (0, [WaitView(WaitReason.HOLD, "", 1), WaitView(WaitReason.ABSORB, "", 1)], WaitReason.ABSORB),
    ],
)
def test_of_the_reasons_that_hold_one_applies_to_a_message(flags, waits, reason) -> None:
    assert reason_of(waits, "t", flags, is_absorbed=False) is reason
