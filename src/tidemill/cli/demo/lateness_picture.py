"""A chart of the demo's lateness: a bar for each doubling of milliseconds. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tidemill.cli.pictures import lying_bar

_BAR_CHARS = 40


def lateness_lines(late_ms: Sequence[int]) -> list[str]:
    """A histogram from 0 ms to the latest: 0, 1, 2 to 3, 4 to 7 and so on, empty ones in between too."""
    if not late_ms:
        return []
    counts = Counter(max(0, late).bit_length() for late in late_ms)
    highest = max(counts.values())
    lines = []
    for bucket in range(max(counts) + 1):
        count = counts[bucket]
        picture = f"{lying_bar(count, highest, _BAR_CHARS)} {count}" if count else ""
        lines.append(f"{_span(bucket):>14}  {picture}".rstrip())
    return lines


def _span(bucket: int) -> str:
    first, last = (1 << bucket) // 2, max(0, (1 << bucket) - 1)
    return f"{first} ms" if first == last else f"{first} to {last} ms"
