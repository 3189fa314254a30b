"""What a gap of the log does: its seqs and queue offsets stay used, and nothing is behind them.

A gap is written by `tidemill salvage` where frames are lost. Its entries are of settled seqs and its queue
rows are expired (place 0), so nothing leads to the bytes that are not there. The log writer, a replay and a
repair make the same rows of the same gap.
"""

from __future__ import annotations

import numpy as np

from tidemill.core.errors import CorruptionError
from tidemill.log.frame import Frame
from tidemill.store.entries import EntryTable
from tidemill.store.formats.frames import Gap
from tidemill.store.formats.lost_rows import lost_entries, lost_queue_rows
from tidemill.store.ledger import Ledger, State
from tidemill.store.topic_queues import Publication
from tidemill.store.topics import TopicTable


def step_over(
    frame: Frame, gap: Gap, ledger: Ledger, entries: EntryTable, topics: TopicTable
) -> Publication | None:
    """Settle the seqs of a gap and take its queue offsets; returns the rows for its queues."""
    if gap.first_seq != ledger.next_seq:
        raise CorruptionError(
            f"the gap at offset {frame.offset} begins at seq {gap.first_seq}, expected {ledger.next_seq}; "
            "run `tidemill rebuild`"
        )
    count = gap.next_seq - gap.first_seq
    if count:
        ledger.grow(count)
        entries.write(gap.first_seq, lost_entries(count))
        ledger.settle(np.arange(gap.first_seq, gap.next_seq), State.MOVED)
    if gap.totals is not None:
        topics.next_topic_id = max(topics.next_topic_id, int(gap.totals.get("next_topic_id", 1)))
    if not gap.queues:
        return None
    partitions = [(topic_id, queue_id) for topic_id, queue_id, _, _ in gap.queues]
    _, _, firsts, ends = zip(*gap.queues, strict=True)
    numbers = np.array(partitions)
    topics.take_offsets(topics.partitions(numbers[:, 0], numbers[:, 1]), np.array(ends))
    counts = [end - first for first, end in zip(firsts, ends, strict=True)]
    return Publication(
        frame.end, partitions, list(firsts), counts, lost_queue_rows(sum(counts), frame.stamp_ms)
    )
