"""Numbers as pictures made of characters: bars, sparklines, columns. Pure: numbers in, text out.

Every picture is scaled to its highest value, and a value above nothing is never drawn as nothing: one message
among a million still shows.
"""

from __future__ import annotations

from collections.abc import Sequence

_LYING = " ▏▎▍▌▋▊▉█"
_STANDING = " ▁▂▃▄▅▆▇█"
_EIGHT = 8


def lying_bar(value: float, highest: float, width: int) -> str:
    """A bar from left to right."""
    whole, rest = divmod(_eighths(value, highest, width), _EIGHT)
    return _LYING[_EIGHT] * whole + (_LYING[rest] if rest else "")


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values, each as high as a line can be."""
    shown = values[-width:]
    highest = max(shown, default=0)
    return "".join(_STANDING[_eighths(value, highest, 1)] for value in shown)


def standing_bars(values: Sequence[float], height: int) -> list[str]:
    """Columns side by side, one character wide; the highest line first."""
    highest = max(values, default=0)
    eighths = [_eighths(value, highest, height) for value in values]
    return [
        "".join(_STANDING[min(_EIGHT, max(0, count - level * _EIGHT))] for count in eighths)
        for level in reversed(range(height))
    ]


def put_together(values: Sequence[int], step: int) -> list[int]:
    """Sums of `step` neighbours each; the last of what is left."""
    return [sum(values[start : start + step]) for start in range(0, len(values), step)]


def bytes_text(count: float) -> str:
    """A number of bytes as people read it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def _eighths(value: float, highest: float, cells: int) -> int:
    if value <= 0 or highest <= 0:
        return 0
    return max(1, round(min(value, highest) * cells * _EIGHT / highest))
