"""Durations and points in time as people write them: `90s`, `1h30m`, `2027-01-01T08:00:00+08:00`.

A number without a unit is seconds: of a duration, or since 1970 as `time.time()` counts. Pure conversions to
milliseconds and back; callers that need "now" pass it in. A part of a millisecond counts as a whole one,
because a message must not come before its time.
"""

from __future__ import annotations

import math
import operator
import re
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Real

from tidemill.core.errors import RequestError
from tidemill.core.limits import MAX_DELAY_MS

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_BELOW_US = re.compile(r"[.,]\d{6}\d*[1-9]")  # digits that a datetime cannot hold
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS, _US = timedelta(milliseconds=1), timedelta(microseconds=1)
_YEAR_10_000_MS = 253_402_300_800_000
_A_TIME = "2027-01-01T08:00:00+08:00"


SECONDS_END = _YEAR_10_000_MS // 1_000  # no Unix time in seconds that a program means is this large

Span = float | str | timedelta  # seconds, `90s`, or a timedelta
Moment = float | str | date  # Unix seconds, ISO 8601, a datetime with a zone, or a date: its midnight in UTC


def parse_duration_ms(text: str) -> int:
    """`500ms`, `5s`, `30m`, `2h`, `3d` or a sum such as `1h30m`, in milliseconds."""
    return math.ceil(_exact_ms(text))


def _exact_ms(text: str) -> Fraction | int:
    """A duration as it was written: 0.07h in binary would be a little more than 252 s."""
    cleaned = text.strip().lower()
    try:
        if _WHOLE.fullmatch(cleaned):
            return sum(_number(count) * _UNIT_MS[unit] for count, unit in _PART.findall(cleaned))
    except ValueError:  # more digits than Python reads
        pass
    raise RequestError(f"not a duration: {text!r}; write it like 500ms, 5s, 30m, 2h or 3d")


def _number(text: str) -> Fraction | int:
    return Fraction(text) if "." in text else int(text)


def parse_time_ms(text: str, now_ms: int) -> int:
    """An ISO 8601 time (UTC where it names no zone), Unix seconds, or `+30m` from `now_ms`."""
    cleaned = text.strip()
    if cleaned.startswith("+"):
        return now_ms + parse_duration_ms(cleaned[1:])
    if cleaned.lower() == "now":
        return now_ms
    return _parse_moment_ms(text, " +30m,")


def _parse_moment_ms(text: str, other_example: str = "") -> int:
    cleaned = text.strip()
    try:
        if cleaned.isdecimal():
            return _unix_ms(cleaned, int(cleaned) * 1_000)
        moment = datetime.fromisoformat(cleaned)
    except ValueError:
        raise RequestError(
            f"not a time: {text!r}; write it like 2027-01-01T08:00:00+08:00,{other_example} "
            "or as Unix seconds"
        ) from None
    since_epoch = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) - _EPOCH
    return _span_ms(since_epoch + _US if _BELOW_US.search(cleaned) else since_epoch)


def _span_ms(span: timedelta) -> int:
    whole, rest = divmod(span, _MS)
    return whole + bool(rest)


def as_duration_ms(value: Span) -> int:
    """Milliseconds from a number of seconds, a `timedelta`, or text such as `90s`."""
    if isinstance(value, timedelta):
        return _span_ms(value)
    return parse_duration_ms(value) if isinstance(value, str) else _ms_in(value, 1_000, "a duration", "90s")


def as_shift_ms(value: Span) -> int:
    """As `as_duration_ms`, but a text may have a sign: `-10m` is ten minutes earlier."""
    if isinstance(value, str) and value.strip()[:1] in ("-", "+"):
        sign, rest = value.strip()[0], value.strip()[1:]
        shift_ms = math.ceil(-_exact_ms(rest) if sign == "-" else _exact_ms(rest))
    else:
        shift_ms = as_duration_ms(value)
    if shift_ms < -MAX_DELAY_MS:
        raise RequestError(
            f"{value!r} is longer than the longest delay; use at most {format_duration(MAX_DELAY_MS)}"
        )
    return shift_ms


def as_time_ms(value: Moment) -> int:
    """Unix milliseconds from Unix seconds, a `datetime` with a zone, or ISO 8601 text.

    A `date` is its midnight in UTC, as it is in a text.
    """
    if isinstance(value, datetime) and value.tzinfo is None and value == value:
        raise RequestError(
            f"{value.isoformat()} has no time zone; give one, as in datetime.now(UTC) or value.astimezone()"
        )
    return _time_ms(value)


def column_time_ms(value: Moment) -> int:
    """As `as_time_ms` in a column of a table, where a number is milliseconds and no zone means UTC."""
    if isinstance(value, str):
        return int(value) if value.strip().isdecimal() else _time_ms(value)
    return _time_ms(value) if isinstance(value, date) else _ms_in(value, 1, "a time", _A_TIME)


def column_duration_ms(value: Span) -> int:
    """As `as_duration_ms` in a column of a table, where a number is milliseconds."""
    is_number = not isinstance(value, str | timedelta)
    return _ms_in(value, 1, "a duration", "90s") if is_number else as_duration_ms(value)


def _time_ms(value: Moment) -> int:
    if isinstance(value, date) and value == value:  # pandas' NaT is a date, but not itself
        if not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day, tzinfo=UTC)
        return _span_ms((value if value.tzinfo is not None else value.replace(tzinfo=UTC)) - _EPOCH)
    if isinstance(value, str):
        if value.strip().startswith("+") or value.strip().lower() == "now":
            raise RequestError(f"{value!r} is a delay, not a time; give it as a delay")
        return _parse_moment_ms(value)
    return _unix_ms(value, _ms_in(value, 1_000, "a time", _A_TIME))


def require_forward(from_ms: int, to_ms: int) -> None:
    """A range of times must not end before it begins; it may be empty."""
    if from_ms > to_ms:
        begin, end = (format_time(ms) if 0 <= ms < _YEAR_10_000_MS else str(ms) for ms in (from_ms, to_ms))
        raise RequestError(f"start {begin} is after end {end}; swap them")


def _unix_ms(given: object, ms: int) -> int:
    """A time that was given as seconds; refused where only milliseconds can be meant."""
    if ms >= _YEAR_10_000_MS:
        raise RequestError(
            f"{given} as Unix seconds is after the year 9999; if it is milliseconds, divide it by 1000"
        )
    return ms


def _ms_in(value: object, unit_ms: int, what: str, example: str) -> int:
    """A number of units as milliseconds. What only looks like one (True, a NumPy span) is none."""
    if type(value) is float and value.is_integer():  # quickly: senders in threads wait for each other here
        return int(value) * unit_ms
    try:
        if not isinstance(value, bool):
            return operator.index(value) * unit_ms  # type: ignore[arg-type]
    except TypeError:
        if isinstance(value, Real | Decimal) and not isinstance(value, Integral) and math.isfinite(value):
            return math.ceil(Fraction(str(value)) * unit_ms)  # as it is written: 0.07 s are 70 ms
    unit = "seconds" if unit_ms > 1 else "milliseconds"
    raise RequestError(f"{value!r} is not {what}; give {unit}, or write it like {example}")


def zone_offset_ms(zone: tzinfo, now_ms: int) -> int:
    """How far a time zone's clocks are ahead of UTC at a time."""
    offset = datetime.fromtimestamp(now_ms / 1000, zone).utcoffset()
    return 0 if offset is None else round(offset.total_seconds() * 1000)


def format_duration(ms: int) -> str:
    """The two largest units of a duration: `2d4h`, `1m30s`, `250ms`."""
    if ms < 0:
        return "-" + format_duration(-ms)
    if ms < 1_000:
        return f"{ms}ms"
    parts: list[str] = []
    rest_ms = ms
    for unit in ("d", "h", "m", "s"):
        count, rest_ms = divmod(rest_ms, _UNIT_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])


def format_time(ms: int) -> str:
    """A point in time as ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
