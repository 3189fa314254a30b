"""The queue rows that a frame brings: made from the frame and the entries it names, without their checks.

Pure. The log writer, a replay and a repair make the same rows of the same frame.
"""

from __future__ import annotations

import numpy as np

from tidemill.core.model import NO_SEQ, NO_TIME_MS, Via
from tidemill.log.arrays import I64, Rows
from tidemill.log.frame import Frame
from tidemill.store.formats.frames import Release
from tidemill.store.formats.queue_format import QUEUE_ROW


def direct_rows(frame_offset: int, rows_of_frame: I64, stamp_ms: int) -> Rows:
    """Rows of messages that go into their queues at once; `rows_of_frame` says which of the section."""
    rows = np.zeros(len(rows_of_frame), QUEUE_ROW)
    rows["place"] = np.uint64(frame_offset << 16) | rows_of_frame.astype(np.uint64)
    rows["seq"] = NO_SEQ
    rows["released_at_ms"] = stamp_ms
    rows["deliver_at_ms"] = NO_TIME_MS
    rows["via"] = Via.DIRECT
    return rows


def released_rows(frame: Frame, release: Release, entries: Rows) -> Rows:
    """Rows of the messages that a record releases, in its order; `entries` are theirs."""
    rows = np.zeros(len(release.seqs), QUEUE_ROW)
    rows["place"] = entries["place"]
    rows["seq"] = release.seqs
    rows["released_at_ms"] = frame.stamp_ms
    rows["deliver_at_ms"] = entries["deliver_at_ms"]
    rows["via"], rows["placements"] = release.via, release.placements
    by_value = release.value_indexes
    if len(by_value) and release.section is not None:
        rows["place"][by_value] = np.uint64(frame.offset << 16) | np.arange(len(by_value), dtype=np.uint64)
        rows["deliver_at_ms"][by_value] = release.section.columns().deliver_at_ms
    return rows
