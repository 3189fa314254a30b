"""Indexes and queues of a store, by themselves: over a log that holds nothing."""

from __future__ import annotations

from pathlib import Path

from tidemill.log.disk import Disk, RealDisk
from tidemill.log.segments import SegmentedLog
from tidemill.store.damage import Repairs
from tidemill.store.derivation import Derivation
from tidemill.store.formats.frames import Base
from tidemill.store.indexes import Indexes, IndexSizes
from tidemill.store.topic_queues import TopicQueues


def no_log(directory: Path, disk: Disk | None = None) -> Derivation:
    log = SegmentedLog(disk or RealDisk(), directory, segment_bytes=4096, opening=lambda _: (1, b""))
    return Derivation(log)


def lone_indexes(directory: Path) -> Indexes:
    return Indexes.create(
        RealDisk(), directory, lambda: False, IndexSizes(), no_log(directory / "no-log"), Repairs()
    )


def lone_queues(disk: Disk, directory: Path, chunk_rows: int) -> TopicQueues:
    derivation = no_log(directory.with_name(f"{directory.name}-no-log"))
    return TopicQueues(disk, directory, lambda: False, chunk_rows, derivation, Repairs())


def base_at(offsets: dict[int, list[int]]) -> Base:
    """A base frame that says from which offsets on the rows of queues are kept."""
    return Base(0, [], {str(topic_id): of_topic for topic_id, of_topic in offsets.items()}, {})
