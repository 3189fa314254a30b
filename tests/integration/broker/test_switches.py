"""Releases and absorbing, held for the whole broker and resumed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from helpers.small_broker import START_MS
from tidemill.broker.control.holds import HOLDS_FORMAT, HoldsState, decode_holds, encode_holds
from tidemill.broker.query.wait_views import WaitView
from tidemill.core.errors import CorruptionError, RequestError, SyncFailedError
from tidemill.core.holds import Held
from tidemill.core.model import CancelAnswer, Draft
from tidemill.log.checkpoint import decode_checkpoint
from tidemill.release.backlogs import WaitReason
from tidemill.testing import FaultPlan

_GOLDEN = Path(__file__).parents[2] / "golden" / "holds-1.bin"


def _waits(small) -> dict[str, int]:
    return {wait.waits_for.value: wait.messages for wait in small.broker.status().waits}


def _send_all_kinds(small) -> None:
    """One near, one far, one of a level and one FIFO message."""
    small.send("t", b"near", delay_ms=2_000)
    small.send("t", b"far", delay_ms=200_000)
    small.send("t", b"level", level=1)
    small.send("t", b"fifo", delay_ms=3_000, message_group="g")


def test_nothing_timed_is_released_while_releases_are_held_and_all_of_it_once_after(small):
    _send_all_kinds(small)
    small.advance(10)
    small.broker.switches.hold("releases")
    small.send("t", b"near later", delay_ms=1)
    small.advance(300_000)
    assert small.bodies("t") == []
    assert small.broker.status().waits == [WaitView(WaitReason.HOLD, "", 5)]
    small.broker.switches.resume("releases")
    small.broker.run_due()
    assert sorted(small.bodies("t")) == [b"far", b"fifo", b"level", b"near", b"near later"]
    assert _waits(small) == {}
    small.check()


def test_messages_without_a_time_are_delivered_while_releases_are_held(small):
    small.broker.switches.hold("releases")
    small.send("t", b"at once")
    assert small.bodies("t") == [b"at once"]


def test_what_is_held_can_be_cancelled_and_moved(small):
    kept, gone, moved = (small.send("t", body, delay_ms=5_000) for body in (b"kept", b"gone", b"moved"))
    small.broker.switches.hold("releases")
    small.advance(10_000)
    assert _waits(small) == {"hold": 3}
    assert small.broker.cancel([gone.handle]) == [CancelAnswer.CANCELLED]
    small.broker.reschedule([moved.handle], delay_ms=60_000)
    assert _waits(small) == {"hold": 1}
    small.broker.switches.resume("releases")
    small.advance(0)
    assert small.bodies("t") == [b"kept"]
    small.advance(60_000)
    assert small.bodies("t") == [b"kept", b"moved"]
    assert kept.handle is not None


@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("what", ["releases", "absorbing"])
def test_a_hold_and_a_resume_survive_a_crash(small, what, power_cut):
    state = small.broker.switches.hold(what)
    assert state.since_ms(Held(what)) == START_MS
    small.kill_and_open(power_cut=power_cut)
    assert small.broker.switches.state == state
    small.broker.switches.resume(what)
    small.kill_and_open(power_cut=power_cut)
    assert small.broker.switches.state == HoldsState()


def test_what_was_held_over_a_restart_says_so_and_goes_after_the_resume(small):
    _send_all_kinds(small)
    small.broker.switches.hold("releases")
    small.advance(100_000)
    small.kill_and_open(power_cut=True)
    small.advance(200_000)
    assert (small.bodies("t"), _waits(small)) == ([], {"hold": 4})
    small.broker.switches.resume("releases")
    small.broker.run_due()
    assert len(small.bodies("t")) == 4
    small.check()


def test_a_paused_topic_says_so_also_while_releases_are_held(small):
    small.send("still", b"1", delay_ms=5_000)
    small.send("free", b"2", delay_ms=5_000)
    small.broker.topics.change("still", is_paused=True)
    small.broker.switches.hold("releases")
    small.advance(70_000)
    assert small.broker.status().waits == [
        WaitView(WaitReason.HOLD, "", 1),
        WaitView(WaitReason.PAUSE, "still", 1),
    ]


def test_a_hold_ends_a_long_step_early(make_small):
    small = make_small(queues_per_topic=1, release_rows_max=1)
    for _ in range(5):
        small.send("t", delay_ms=1_000)
    small.clock.advance(1_000)
    writer, switches = small.broker.store.writer, small.broker.switches
    release, seen, holding = writer.release, threading.Event(), []

    def hold_during_the_first(*given):
        if not holding:
            holding.append(threading.Thread(target=lambda: (switches.hold("releases"), seen.set())))
            holding[0].start()
            while not switches.state.releases_since_ms:
                seen.wait(0.001)
        assert not seen.is_set()  # not answered while a step is under way
        return release(*given)

    writer.release = hold_during_the_first
    small.broker._release_service.run_once()
    holding[0].join()
    assert seen.is_set()
    assert len(small.bodies("t")) == 1
    writer.release = release
    switches.resume("releases")
    small.broker.run_due()
    assert len(small.bodies("t")) == 5


def test_what_is_held_is_not_swept(small):
    for number in range(3):
        small.send("t", b"%d" % number, delay_ms=1_000 * number)
    small.broker.switches.hold("releases")
    small.advance(3_600_000)
    small.broker.run_due()
    assert small.broker.releaser.sweeper.missing_count == 0
    small.broker.switches.resume("releases")
    small.advance(120_000)
    assert len(small.bodies("t")) == 3
    small.check()  # which finds nothing swept


def test_while_absorbing_is_held_only_what_was_not_absorbed_waits(small):
    small.send("t", b"absorbed", delay_ms=200_000)
    small.advance(30_000)
    small.broker.switches.hold("absorbing")
    end = small.broker._timer.absorbed_end
    small.send("t", b"late", delay_ms=180_000)
    small.send("t", b"near", delay_ms=1_000)
    small.send("t", b"level", level=1)
    small.advance(400_000)
    assert sorted(small.bodies("t")) == [b"absorbed", b"level", b"near"]
    assert small.broker._timer.absorbed_end == end
    assert small.broker.status().waits == [WaitView(WaitReason.ABSORB, "", 1)]
    assert small.broker.releaser.sweeper.missing_count == 0
    small.broker.switches.resume("absorbing")
    small.advance(0)
    assert len(small.bodies("t")) == 4
    assert _waits(small) == {}
    small.check()


def test_what_absorbing_holds_waits_over_a_restart_too_and_a_lost_timer_absorbs_the_rest_again(small):
    small.send("t", b"absorbed", delay_ms=200_000)
    small.advance(30_000)
    small.broker.switches.hold("absorbing")
    small.send("t", b"late", delay_ms=100_000)
    small.kill()
    small.delete("timer")
    small.open()
    small.advance(400_000)
    assert (small.bodies("t"), _waits(small)) == ([b"absorbed"], {"absorb": 1})
    small.kill_and_open()  # the look at the start finds what is overdue: not this
    small.advance(1_000)
    assert (small.bodies("t"), _waits(small)) == ([b"absorbed"], {"absorb": 1})
    small.broker.switches.resume("absorbing")
    small.advance(0)
    assert small.bodies("t") == [b"absorbed", b"late"]
    small.check()


def test_a_limited_topic_with_more_than_fits_in_memory_finds_nothing_that_absorbing_holds(small):
    small.broker.topics.create("t")
    small.broker.topics.change("t", release_rate_max=2)
    small.broker.releaser.backlogs.rows_max = 2
    for number in range(8):
        small.send("t", b"%d" % number, delay_ms=1_000)
    small.broker.switches.hold("absorbing")
    small.send("t", b"late", delay_ms=60_000)
    small.advance(90_000)
    assert len(small.bodies("t")) == 8
    assert _waits(small) == {"absorb": 1}
    small.broker.switches.resume("absorbing")
    small.advance(10_000)
    assert len(small.bodies("t")) == 9
    small.check()


def test_both_held_each_message_says_what_it_waits_for(small):
    small.broker.switches.hold("absorbing")
    small.broker.switches.hold("releases")
    small.send("t", b"far", delay_ms=100_000)
    small.send("t", b"near", delay_ms=1_000)
    small.advance(100_500)
    assert _waits(small) == {"absorb": 1, "hold": 1}
    small.advance(60_000)
    assert _waits(small) == {"absorb": 1, "hold": 1}
    small.broker.switches.resume("releases")
    small.advance(0)
    assert (small.bodies("t"), _waits(small)) == ([b"near"], {"absorb": 1})


def test_a_fifo_message_is_not_overtaken_by_one_that_was_stored_after_it(small):
    small.broker.switches.hold("absorbing")
    small.send("t", b"far", delay_ms=100_000, message_group="g")
    small.advance(99_000)
    small.send("t", b"near", delay_ms=2_000, message_group="g")
    small.advance(10_000)
    assert (small.bodies("t"), _waits(small)) == ([], {"absorb": 1, "order": 1})
    small.broker.switches.resume("absorbing")
    small.advance(0)
    assert small.bodies("t") == [b"far", b"near"]


def test_a_cancelled_message_that_was_not_absorbed_holds_up_no_order(small):
    small.broker.switches.hold("absorbing")
    far = small.send("t", b"far", delay_ms=100_000, message_group="g")
    small.advance(99_000)
    small.send("t", b"near", delay_ms=2_000, message_group="g")
    small.advance(5_000)
    small.broker.cancel([far.handle])
    small.advance(1_000)
    assert small.bodies("t") == [b"near"]


def test_holding_absorbing_calls_for_no_step(small):
    small.broker.switches.hold("absorbing")
    for _ in range(200):
        small.send("t", delay_ms=600_000)
    small.clock.advance(60_000)  # by far older than a quarter of the lead
    small.broker.run_due()
    assert not small.broker._timer.is_called_for
    assert small.broker.status().pipeline.unabsorbed == 200


@pytest.mark.parametrize("what", ["releases", "absorbing"])
def test_an_advance_under_a_hold_takes_few_steps(small, what):
    small.broker.switches.hold(what)
    for number in range(20):
        small.send("t", delay_ms=60_000 * number)
    steps = []
    run_once = small.broker._release_service.run_once
    small.broker._release_service.run_once = lambda *given: (steps.append(1), run_once(*given))[1]
    small.advance(40 * 86_400_000)
    assert small.clock.now_ms() == START_MS + 40 * 86_400_000
    assert len(steps) < 200


def test_the_same_again_is_no_error_and_changes_nothing(small):
    state = small.broker.switches.hold("absorbing")
    small.send("t", delay_ms=100_000)
    small.clock.advance(5_000)
    assert small.broker.switches.hold("absorbing") == state
    small.broker.switches.resume("absorbing")
    assert small.broker.switches.resume("absorbing") == HoldsState()


@pytest.mark.parametrize("verb", ["hold", "resume"])
def test_something_unknown_is_refused_in_one_line(small, verb):
    with pytest.raises(RequestError) as refused:
        getattr(small.broker.switches, verb)("sends")
    assert str(refused.value) == "'sends' cannot be held or resumed; use releases or absorbing"


@pytest.mark.parametrize("what", ["releases", "absorbing"])
def test_a_hold_that_is_not_synced_is_not_answered_and_stops_the_broker(small, what):
    small.disk.arm(FaultPlan(fail_sync_at=1))
    with pytest.raises(SyncFailedError):
        small.broker.switches.hold(what)
    assert small.broker.switches.state == HoldsState()
    assert small.broker.health.fault is not None
    small.disk.arm(FaultPlan())
    small.is_timer_damaged = True
    small.kill_and_open()


def test_one_damaged_file_is_no_harm_and_two_are_refused(small):
    small.broker.switches.hold("releases")
    for count, number in enumerate("01", 1):
        small.close()
        path = small.directory / f"holds.{number}"
        if count == 1:
            path.write_bytes(b"damaged")
            small.open()
            assert small.broker.switches.state.releases_since_ms == START_MS
    for number in "01":
        (small.directory / f"holds.{number}").write_bytes(b"damaged")
    with pytest.raises(CorruptionError, match=r"holds.0 and .1 are damaged.*remove both"):
        small.open()
    for number in "01":
        (small.directory / f"holds.{number}").unlink()
    small.open()


def test_the_file_is_that_of_the_golden_one():
    state = HoldsState(releases_since_ms=START_MS, absorbing_since_ms=START_MS + 1, absorb_below_seq=77)
    content = decode_checkpoint(_GOLDEN.read_bytes())
    assert content is not None and content.version == HOLDS_FORMAT
    assert content.content == encode_holds(state)
    assert decode_holds(content.content) == state


def test_sends_in_bulk_go_on(small):
    small.broker.switches.hold("releases")
    small.broker.switches.hold("absorbing")
    receipts = small.broker.send([Draft("t", b"%d" % n, delay_ms=n * 1_000) for n in range(300)])
    assert len(receipts) == 300
    small.advance(400_000)
    assert sum(_waits(small).values()) == 300
    for what in ("releases", "absorbing"):
        small.broker.switches.resume(what)
    small.advance(0)
    assert len(small.bodies("t")) == 300
    small.check()
