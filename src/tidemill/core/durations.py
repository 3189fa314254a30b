"""Durations and points in time as people write them: `90s`, `1h30m`, `2027-01-01T08:00:00+08:00`.

Pure text to milliseconds and back; whoever needs "now" passes it in.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo

from tidemill.core.errors import RequestError
from tidemill.core.limits import MAX_DELAY_MS

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_YEAR_10_000_MS = 253_402_300_800_000


Span = int | str | timedelta  # milliseconds, `90s`, or a timedelta
Moment = int | str | datetime  # Unix milliseconds, ISO 8601, or a datetime


def parse_duration_ms(text: str) -> int:
    """`500ms`, `5s`, `30m`, `2h`, `3d` or a sum such as `1h30m`, in milliseconds."""
    cleaned = text.strip().lower()
    if not _WHOLE.fullmatch(cleaned):
        raise RequestError(f"not a duration: {text!r}; write it like 500ms, 5s, 30m, 2h or 3d")
    return round(sum(float(count) * _UNIT_MS[unit] for count, unit in _PART.findall(cleaned)))


def parse_time_ms(text: str, now_ms: int) -> int:
    """An ISO 8601 time (UTC where it names no zone), Unix milliseconds, or `+30m` from `now_ms`."""
    cleaned = text.strip()
    if cleaned.startswith("+"):
        return now_ms + parse_duration_ms(cleaned[1:])
    if cleaned.lower() == "now":
        return now_ms
    if cleaned.isdigit():
        return int(cleaned)
    try:
        moment = datetime.fromisoformat(cleaned)
    except ValueError:
        raise RequestError(
            f"not a time: {text!r}; write it like 2027-01-01T08:00:00+08:00, +30m, or Unix milliseconds"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def as_duration_ms(value: Span) -> int:
    """Milliseconds from a number of them, a `timedelta`, or text such as `90s`."""
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    return parse_duration_ms(value) if isinstance(value, str) else _whole(value, "a duration", "90s")


def as_shift_ms(value: Span) -> int:
    """As `as_duration_ms`, but a text may have a sign: `-10m` is ten minutes earlier."""
    if isinstance(value, str) and value.strip()[:1] in ("-", "+"):
        sign, rest = value.strip()[0], value.strip()[1:]
        shift_ms = -parse_duration_ms(rest) if sign == "-" else parse_duration_ms(rest)
    else:
        shift_ms = as_duration_ms(value)
    if shift_ms < -MAX_DELAY_MS:
        raise RequestError(
            f"{value!r} is further back than any message waits; use at most {format_duration(MAX_DELAY_MS)}"
        )
    return shift_ms


def as_time_ms(value: Moment) -> int:
    """Unix milliseconds from a number of them, a `datetime` (UTC without a zone), or ISO 8601 text."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)
    if isinstance(value, str):
        if value.strip().startswith("+") or value.strip().lower() == "now":
            raise RequestError(f"{value!r} is a delay, not a time; give it as a delay")
        return parse_time_ms(value, 0)
    return _whole(value, "a time", "2027-01-01T08:00:00+08:00")


def require_forward(from_ms: int, to_ms: int) -> None:
    """A range of times must not end before it begins; it may be empty."""
    if from_ms > to_ms:
        begin, end = (format_time(ms) if 0 <= ms < _YEAR_10_000_MS else str(ms) for ms in (from_ms, to_ms))
        raise RequestError(
            f"the range is backwards: it begins at {begin} and ends before that, at {end}; swap the two"
        )


def _whole(value: object, what: str, example: str) -> int:
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        raise RequestError(
            f"{value!r} is not {what}; give whole milliseconds, or write it like {example}"
        ) from None


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
