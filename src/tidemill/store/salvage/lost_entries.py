"""What the old index still says of messages whose frames are lost: their topics and due times.

Information for the report only. A row counts if its own check is right; nothing is written because of it.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidemill.log.arrays import Rows
from tidemill.log.read_only_disk import ReadOnlyDisk
from tidemill.store.formats.entry_format import ENTRY
from tidemill.store.formats.row_check import salts_of, sealed_mask

_CHUNK = re.compile(r"\d{20}")
_READ_ROWS = 1 << 18


@dataclass(slots=True)
class LostMessages:
    """Of one topic: how many lost seqs the index knows, and when they were due."""

    topic_id: int
    count: int
    due_from_ms: int
    due_to_ms: int


def lost_messages(disk: ReadOnlyDisk, directory: Path, seqs: Iterable[tuple[int, int]]) -> list[LostMessages]:
    """What the entries of these ranges of seqs say, by topic."""
    folder = directory / "index" / "entries"
    firsts = [int(name) for name in disk.names(folder) if _CHUNK.fullmatch(name)]
    found: dict[int, LostMessages] = {}
    for first, end in seqs:
        while first < end:
            chunk = bisect.bisect_right(firsts, first) - 1
            if chunk < 0:
                break
            following = firsts[chunk + 1] if chunk + 1 < len(firsts) else end
            stop = min(end, following, first + _READ_ROWS)
            if stop <= first:
                break
            path = folder / f"{firsts[chunk]:020d}"
            data = disk.read(path, (first - firsts[chunk]) * ENTRY.itemsize, (stop - first) * ENTRY.itemsize)
            rows = np.frombuffer(data, ENTRY, len(data) // ENTRY.itemsize)
            _add(found, rows[sealed_mask(rows, salts_of(np.arange(first, first + len(rows))))])
            first = stop
    return sorted(found.values(), key=lambda lost: lost.topic_id)


def _add(found: dict[int, LostMessages], rows: Rows) -> None:
    rows = rows[rows["topic_id"] > 0]  # the others stand for what an earlier salvage lost
    for topic_id in np.unique(rows["topic_id"]).tolist():
        due = rows["deliver_at_ms"][rows["topic_id"] == topic_id]
        low, high = int(due.min()), int(due.max())
        known = found.setdefault(topic_id, LostMessages(topic_id, 0, low, high))
        known.count += len(due)
        known.due_from_ms, known.due_to_ms = min(known.due_from_ms, low), max(known.due_to_ms, high)
