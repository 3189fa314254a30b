"""What a frame takes for granted of the state before it: topics, seqs and queue offsets.

Pure: a frame in, its demands out. Behind a damaged range they show what the lost frames had assigned.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tidemill.core.model import NO_TIME_MS
from tidemill.log.arrays import I64
from tidemill.log.frame import Frame
from tidemill.store.formats.frame_contents import messages_in
from tidemill.store.formats.frames import Cancel, Half, Kind, ReEnter, Release
from tidemill.store.formats.message_format import Columns, Section
from tidemill.store.salvage.region import PartitionKey

_QUEUE_BITS = 16


@dataclass(slots=True)
class Demands:
    """What must be there before a frame is applied."""

    next_seq: int = 0  # at least
    is_exact: bool = False  # the next seq is exactly that: the frame makes seqs
    offsets: dict[PartitionKey, int] = field(default_factory=dict)  # next offsets, at least
    queue_counts: dict[int, int] = field(default_factory=dict)  # of topics, at least


def demands_of(frame: Frame) -> Demands:
    """The demands of a frame of the commit log, but for base and topic frames."""
    demands = Demands()
    match frame.kind:
        case Kind.RELEASE:
            _of_release(demands, Release.read(frame.payload))
        case Kind.CANCEL:
            demands.next_seq = _behind(Cancel.read(frame.payload).seqs)
        case Kind.RE_ENTER:
            moved = ReEnter.read(frame.payload)
            demands.next_seq = _behind(moved.old_seqs)
            _of_section(demands, moved.section)
        case Kind.HALF:
            _of_topics(demands, Half.read(frame.payload).section.columns())
        case _:
            section = messages_in(frame)
            if section is not None:
                _of_section(demands, section)
    return demands


def _behind(seqs: I64) -> int:
    return int(seqs.max()) + 1 if len(seqs) else 0


def _of_release(demands: Demands, release: Release) -> None:
    demands.next_seq = _behind(release.seqs)
    for group in release.groups:
        topic_id, queue_id = int(group["topic_id"]), int(group["queue_id"])
        demands.offsets[topic_id, queue_id] = int(group["first_offset"])
        demands.queue_counts[topic_id] = max(demands.queue_counts.get(topic_id, 0), queue_id + 1)


def _of_section(demands: Demands, section: Section) -> None:
    columns = section.columns()
    _of_topics(demands, columns)
    is_direct = columns.deliver_at_ms == NO_TIME_MS
    if not is_direct.all():
        demands.next_seq, demands.is_exact = section.first_seq, True
    if not is_direct.any():
        return
    partitions = columns.topic_id[is_direct].astype(np.int64) << _QUEUE_BITS | columns.queue_id[is_direct]
    distinct, which = np.unique(partitions, return_inverse=True)
    firsts = np.full(len(distinct), np.iinfo(np.int64).max)
    np.minimum.at(firsts, which, columns.queue_offset[is_direct])
    for partition, first in zip(distinct.tolist(), firsts.tolist(), strict=True):
        demands.offsets[partition >> _QUEUE_BITS, partition & ((1 << _QUEUE_BITS) - 1)] = first


def _of_topics(demands: Demands, columns: Columns) -> None:
    for topic_id in np.unique(columns.topic_id).tolist():
        of_topic = columns.topic_id == topic_id
        demands.queue_counts[topic_id] = int(columns.queue_id[of_topic].max()) + 1
