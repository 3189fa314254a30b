"""Durations and times as people write them."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.durations import (
    as_duration_ms,
    as_shift_ms,
    as_time_ms,
    column_duration_ms,
    column_time_ms,
    format_duration,
    format_time,
    parse_duration_ms,
    parse_time_ms,
)
from tidemill.core.errors import RequestError


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500ms", 500),
        ("5s", 5_000),
        ("30m", 1_800_000),
        ("2h", 7_200_000),
        ("3d", 259_200_000),
        ("1h30m", 5_400_000),
        ("1.5s", 1_500),
        (" 2H ", 7_200_000),
        ("0s", 0),
    ],
)
def test_a_duration_reads_as_milliseconds(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5 s", "5x", "1h 30m", "five", "5s!"])
def test_what_is_no_duration_is_named_in_the_error(text: str) -> None:
    with pytest.raises(RequestError, match="not a duration") as caught:
        parse_duration_ms(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2027-01-01T08:00:00+08:00", 1_798_761_600_000),
        ("2027-01-01T00:00:00Z", 1_798_761_600_000),
        ("2027-01-01T00:00:00", 1_798_761_600_000),
        ("2027-01-01", 1_798_761_600_000),
        ("2027-01-01T00:00:00.250", 1_798_761_600_250),
        ("1798761600", 1_798_761_600_000),
        ("+30m", 1_800_007),
        ("now", 7),
    ],
)
def test_a_time_reads_as_unix_milliseconds(text: str, ms: int) -> None:
    assert parse_time_ms(text, now_ms=7) == ms


@pytest.mark.parametrize("text", ["", "tomorrow", "2027-13-01", "+", "+x"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="not a "):
        parse_time_ms(text, now_ms=0)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (250, "250ms"),
        (1_000, "1s"),
        (90_000, "1m30s"),
        (187_200_000, "2d4h"),
        (187_261_000, "2d4h"),
        (-90_000, "-1m30s"),
    ],
)
def test_a_duration_is_shown_by_its_two_largest_units(ms: int, text: str) -> None:
    assert format_duration(ms) == text


@given(st.integers(0, 3650 * 86_400_000))
def test_a_shown_duration_reads_back_no_longer_than_it_was(ms: int) -> None:
    assert 0 <= parse_duration_ms(format_duration(ms)) <= ms


@given(st.integers(0, 4_000_000_000_000))
def test_a_shown_time_reads_back_as_itself(ms: int) -> None:
    assert parse_time_ms(format_time(ms), now_ms=0) == ms


@pytest.mark.parametrize(
    ("span", "ms"),
    [
        ("0.5ms", 1),
        ("1.0001s", 1_001),
        ("0.07h", 252_000),  # a whole number, though not in binary
        ("0.5ms0.5ms", 1),
        (timedelta(microseconds=1), 1),
        (timedelta(milliseconds=5, microseconds=500), 6),
        (1.2001, 1_201),
        (0.07, 70),  # as it is written, not as it is in binary
        (Decimal("7.0"), 7_000),
    ],
)
def test_a_part_of_a_millisecond_makes_no_delay_shorter(span: object, ms: int) -> None:
    assert as_duration_ms(span) == ms


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2027, 1, 1, microsecond=1, tzinfo=UTC),
        "2027-01-01T00:00:00.000500Z",
        "2027-01-01T00:00:00.0000001Z",
        1_798_761_600.0005,
    ],
)
def test_a_part_of_a_millisecond_makes_no_moment_earlier(moment: object) -> None:
    assert as_time_ms(moment) == 1_798_761_600_001


def test_a_bare_number_is_seconds() -> None:
    assert (as_duration_ms(30), as_shift_ms(-30)) == (30_000, -30_000)
    assert as_time_ms(1_798_761_600) == as_time_ms("1798761600") == as_time_ms("2027-01-01")
    assert as_time_ms(0.001) == 1


@pytest.mark.parametrize("moment", [1_798_761_600_000, 1_798_761_600_000.5, "1798761600000"])
def test_a_number_that_can_only_be_milliseconds_is_refused_with_a_hint(moment: object) -> None:
    with pytest.raises(RequestError, match="if it is milliseconds, divide it by 1000"):
        as_time_ms(moment)
    with pytest.raises(RequestError, match="if it is milliseconds, divide it by 1000"):
        parse_time_ms(str(moment).partition(".")[0], now_ms=0)


def test_a_datetime_without_a_zone_is_refused() -> None:
    naive = datetime(2027, 1, 1, 8)  # noqa: DTZ001 - that is the mistake
    for moment in (naive, pd.Timestamp(naive)):
        with pytest.raises(RequestError, match="2027-01-01T08:00:00 has no time zone"):
            as_time_ms(moment)


def test_in_a_column_a_number_is_milliseconds_and_no_zone_is_utc() -> None:
    naive = datetime(2027, 1, 1)  # noqa: DTZ001 - as pandas has them
    for value in (1_798_761_600_000, "1798761600000", "2027-01-01", naive, naive.replace(tzinfo=UTC)):
        assert column_time_ms(value) == 1_798_761_600_000
    assert column_duration_ms(1.2) == column_duration_ms(timedelta(microseconds=1_200)) == 2
    assert column_duration_ms(-5) == -5


def test_a_date_is_its_midnight() -> None:
    assert as_time_ms(date(2027, 1, 1)) == as_time_ms("2027-01-01") == 1_798_761_600_000


@pytest.mark.parametrize(("text", "ms"), [("-0.5ms", 0), ("-10.5ms", -10), ("+0.5ms", 1)])
def test_a_shift_ends_no_earlier_than_it_says(text: str, ms: int) -> None:
    assert as_shift_ms(text) == ms


@pytest.mark.parametrize("value", [True, None, float("nan"), float("inf"), time(1), "9" * 5_000 + "d", []])
def test_what_only_looks_like_a_number_is_refused_in_words(value: object) -> None:
    with pytest.raises(RequestError, match="not a duration"):
        as_duration_ms(value)
    with pytest.raises(RequestError, match="not a time"):
        as_time_ms(value)


def test_spans_and_moments_of_numpy_and_pandas_are_not_taken_for_bare_numbers() -> None:
    assert as_duration_ms(np.int64(5)) == as_duration_ms(pd.Timedelta(5, "s")) == 5_000
    assert as_duration_ms(pd.Timedelta(1, "ns")) == 1
    assert as_time_ms(pd.Timestamp(1, unit="ns", tz="UTC")) == 1
    with pytest.raises(RequestError, match="not a duration"):
        as_duration_ms(np.timedelta64(3_600, "s"))
    for missing in (pd.NaT, pd.NA, np.datetime64("2027-01-01", "s")):
        with pytest.raises(RequestError, match="not a time"):
            as_time_ms(missing)
