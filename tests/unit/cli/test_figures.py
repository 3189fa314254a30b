"""The text of a figure's target is its rule."""

from __future__ import annotations

import pytest

from tidemill.cli.bench.figures import FIGURES, LEVEL_FIGURES, PIPELINE_FIGURES, SERVER_FIGURES, Figure


@pytest.mark.parametrize(
    ("target", "good", "bad"),
    [
        ("> 500,000", 500_001, 500_000),
        ("< 2", 1.9, 2),
        (">= 0", 0, -0.1),
        ("<= 1.1", 1.1, 1.2),
        ("0 to 1,000", 0, 1_000),
        ("0 to 10", 9.9, -1),
        ("flat, < 64", -3, 64),
    ],
)
def test_a_target_holds_or_does_not(target: str, good: float, bad: float) -> None:
    figure = Figure("f", "", target)
    assert (figure.holds(good), figure.holds(bad)) == (True, False)


def test_every_target_is_a_rule() -> None:
    figures = [*FIGURES, *SERVER_FIGURES, *PIPELINE_FIGURES, *LEVEL_FIGURES]
    judged = [figure for figure in figures if figure.target]
    assert len(judged) == 28
    # What nothing can fulfil or nothing can fail is no rule.
    assert all({figure.holds(value) for value in (-1e12, 0, 1, 1e12)} == {True, False} for figure in judged)
