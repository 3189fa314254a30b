"""The frame that releases messages: grouped by queue, in the order given. Nothing is changed by making it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidemill.core.model import StoredMessage
from tidemill.log.arrays import I64, U8, U16, Flags, Rows
from tidemill.log.disk import Bytes
from tidemill.store.formats.frames import RELEASE_GROUP, Release
from tidemill.store.formats.rows import encode_messages
from tidemill.store.topic_queues import grouped
from tidemill.store.topics import TopicTable


def release_frame(
    topics: TopicTable,
    seqs: I64,
    rows: Rows,
    via: U8,
    placements: U16,
    value_messages: Sequence[StoredMessage],
    is_value: Flags,
) -> tuple[Release, I64]:
    """The frame for these seqs, whose entries are `rows`, and in which order it has them.

    `value_messages` are the messages of the rows where `is_value`, whose bytes go along.
    """
    partitions = topics.partitions(rows["topic_id"], rows["queue_id"])
    order, starts, counts = grouped(partitions)
    groups = np.zeros(len(starts), RELEASE_GROUP)
    firsts = order[starts]
    groups["topic_id"] = rows["topic_id"][firsts]
    groups["queue_id"] = rows["queue_id"][firsts]
    groups["first_offset"] = topics.plan_offsets(partitions[firsts])
    groups["count"] = counts
    value_indexes = np.flatnonzero(is_value[order]).astype(np.uint32)
    parts: list[Bytes] = []
    if len(value_indexes):
        rank = np.cumsum(is_value) - 1
        ordered = [value_messages[i] for i in rank[order][value_indexes].tolist()]
        parts = [encode_messages(ordered, [-1] * len(ordered), 0)]
    return Release(groups, seqs[order], via[order], placements[order], value_indexes, None, parts), order
