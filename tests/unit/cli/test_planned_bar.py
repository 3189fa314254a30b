"""A bar for steps that tell nothing: it moves with the clock and never waits at the end."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tidemill.cli.planned_bar import Plan, PlannedStep, planned_bar

_STEPS = (PlannedStep("first", 10), PlannedStep("second", 30))


def test_the_share_moves_within_a_step() -> None:
    plan = Plan(_STEPS, begun_s=100.0)
    assert plan.text == "1 of 2: first"
    assert plan.share(100.0) == 0
    assert plan.share(105.0) == pytest.approx(5 / 40)
    assert plan.left_s(105.0) == pytest.approx(35)
    assert plan.percent_per_minute(105.0) == pytest.approx(60 / 40 * 100)


def test_what_is_done_corrects_what_is_left() -> None:
    plan = Plan(_STEPS, begun_s=0.0)
    plan.begin(1, now_s=20.0)  # it took twice as long as was thought
    assert plan.text == "2 of 2: second"
    assert plan.share(20.0) == pytest.approx(0.25)
    assert plan.left_s(20.0) == pytest.approx(60)
    assert plan.left_s(50.0) == pytest.approx(30)


def test_a_step_that_takes_too_long_never_reaches_its_end() -> None:
    plan = Plan(_STEPS, begun_s=0.0)
    shares = [plan.share(second) for second in range(0, 60)]
    assert shares == sorted(shares)
    assert shares[-1] < 0.25
    assert plan.left_s(1_000.0) >= 30


def test_the_end_is_the_end() -> None:
    plan = Plan(_STEPS, begun_s=0.0)
    plan.begin(2, now_s=40.0)
    assert (plan.text, plan.share(41.0), plan.left_s(41.0)) == ("done", 1.0, 0.0)


def test_the_bar_shows_step_share_rate_and_time_left() -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    with planned_bar([PlannedStep("sending", 3600), PlannedStep("waiting", 7200)], screen) as next_step:
        next_step()
        next_step()
    said = screen.file.getvalue()
    assert "1 of 2: sending" in said
    assert "3:00:00" in said
    assert "%/min" in said
    assert "2 of 2: waiting" in said
    assert "100%" in said


def test_there_is_no_bar_in_a_pipe() -> None:
    screen = Console(file=io.StringIO(), force_terminal=False)
    with planned_bar(_STEPS, screen) as next_step:
        next_step()
    assert screen.file.getvalue() == ""
