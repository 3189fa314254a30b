"""Durations and times of the command line."""

from __future__ import annotations

import re

import pytest
import typer

from tidemill.cli.arguments import Time, due_of, duration, shift, time


def test_a_duration_stays_as_it_was_written() -> None:
    assert duration("1h30m") == "1h30m"
    assert shift("-10m") == "-10m"


def test_a_time_is_absolute_or_counts_from_the_brokers_clock() -> None:
    assert time("2027-01-15T08:00:00Z") == time("1800000000") == Time(1_800_000_000_000, False)
    assert time("+30m") == Time(1_800_000, True)
    assert time(" Now ") == Time(0, True)


def test_a_relative_due_time_is_a_delay() -> None:
    assert due_of(None, time("+30m")) == ("1800000ms", None)
    assert due_of(None, time("1800000000")) == (None, "2027-01-15T08:00:00.000Z")
    assert due_of("90s", None) == ("90s", None)
    assert due_of(None, None) == (None, None)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (duration, "soon"),
        (shift, "-soon"),
        (time, "tomorrow"),
        (time, "253402300800"),
        (time, "+2920000d"),
        (time, "99999999999999999999"),
    ],
)
def test_what_is_neither_is_refused_with_its_text(parse, text: str) -> None:
    with pytest.raises(typer.BadParameter, match=re.escape(text.lstrip("+-"))):
        parse(text)
