"""Charts made of characters: bars, sparklines, columns, a histogram. Pure: numbers in, text out.

Every chart is scaled to its highest value, and a value above zero is always visible: one message among a
million still shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_HORIZONTAL = " ▏▎▍▌▋▊▉█"
_VERTICAL = " ▁▂▃▄▅▆▇█"
_EIGHT = 8
_HISTOGRAM_CHARS = 40


def lying_bar(value: float, highest: float, width: int) -> str:
    """A bar from left to right."""
    whole, rest = divmod(_eighths(value, highest, width), _EIGHT)
    return _HORIZONTAL[_EIGHT] * whole + (_HORIZONTAL[rest] if rest else "")


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values as columns in one line of text."""
    return standing_bars(values[-width:], 1)[0]


def standing_bars(values: Sequence[float], height: int) -> list[str]:
    """Columns side by side, one character wide; the top line first."""
    highest = max(values, default=0)
    eighths = [_eighths(value, highest, height) for value in values]
    return [
        "".join(_VERTICAL[min(_EIGHT, max(0, count - level * _EIGHT))] for count in eighths)
        for level in reversed(range(height))
    ]


def put_together(values: Sequence[int], step: int) -> list[int]:
    """Sums of `step` neighbours each; the last sum may have fewer."""
    return [sum(values[start : start + step]) for start in range(0, len(values), step)]


def lateness_lines(late_ms: Sequence[int]) -> list[str]:
    """A histogram of lateness: 0 ms, 1, 2 to 3, 4 to 7 and so on up to the latest, empty ones included."""
    counts = Counter(max(0, late).bit_length() for late in late_ms)
    highest = max(counts.values(), default=0)
    lines = []
    for bucket in range(max(counts, default=-1) + 1):
        first, last, count = (1 << bucket) // 2, max(0, (1 << bucket) - 1), counts[bucket]
        span = f"{first} ms" if first == last else f"{first} to {last} ms"
        bar = f"{lying_bar(count, highest, _HISTOGRAM_CHARS)} {count}" if count else ""
        lines.append(f"{span:>14}  {bar}".rstrip())
    return lines


def bytes_text(count: float) -> str:
    """A number of bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def _eighths(value: float, highest: float, cells: int) -> int:
    if value <= 0 or highest <= 0:
        return 0
    return max(1, round(min(value, highest) * cells * _EIGHT / highest))
