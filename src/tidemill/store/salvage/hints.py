"""Other sources about a damaged log: its base frames, and the checkpoint of its index.

Owns what is known of the state at some offsets of the log. Both have checksums over all they say; an index
checkpoint is what an opening trusts too. One that contradicts the log is of another directory and is ignored.
Rows of derived tables decide nothing here.
"""

from __future__ import annotations

from functools import partial
from itertools import takewhile
from pathlib import Path

from tidemill.log.read_only_disk import ReadOnlyDisk
from tidemill.store.formats.frames import Base, Kind
from tidemill.store.index_checkpoint import INDEX_FORMAT, base_in, checkpoint_head, require_own
from tidemill.store.salvage.demands import Demands, demands_of
from tidemill.store.salvage.source import SourceLog, newest_checkpoint
from tidemill.store.topics import Topic

_NO_TOTALS: dict[str, int] = {}


class Hints:
    """The states that are known. `offset` is where the index checkpoint was taken; 0 for none."""

    def __init__(self, disk: ReadOnlyDisk, directory: Path, source: SourceLog) -> None:
        self.offset = 0
        self._base: Base | None = None
        newest = newest_checkpoint(
            disk, directory / "index", "checkpoint", INDEX_FORMAT, partial(require_own, source)
        )
        if newest is not None and newest.version <= INDEX_FORMAT:
            head = checkpoint_head(newest.content)
            if head["offset"] >= source.head:
                self.offset = int(head["offset"])
                self._base = base_in(head)
        self._bases = [Base.read(frame.payload) for frame in source.bases() if frame.kind == Kind.BASE]
        self._known = [*self._bases, *([self._base] if self._base is not None else [])]

    def take_base(self, offset: int) -> Base | None:
        """The state at the index checkpoint, once, when the copy has come to `offset` at or behind it."""
        if self._base is None or offset < self.offset:
            return None
        base, self._base = self._base, None
        return base

    def topic(self, topic_id: int) -> Topic | None:
        """What is known of a topic whose own frame is lost."""
        for base in self._known:
            for fields in base.topics:
                if fields["id"] == topic_id:
                    return Topic.from_dict(fields)
        return None

    # -- where a log begins -----------------------------------------------------------------------

    def first_base(self, source: SourceLog) -> Base | None:
        """The state at the log's head; None where it begins with nothing."""
        first = next(source.intact_frames(), None)
        if first is None:
            return self._base
        if first.kind == Kind.BASE:
            return Base.read(first.payload)
        frames = source.intact_frames()
        before = [
            demands_of(f) for f in takewhile(lambda f: f.kind != Kind.BASE, frames) if f.kind != Kind.TOPIC
        ]
        return self._guessed(before)

    def _guessed(self, before: list[Demands]) -> Base | None:
        """The state that the frames in front of the first base frame take for granted."""
        following = self._known[0] if self._known else None
        next_seq = next((demands.next_seq for demands in before if demands.is_exact), None)
        if next_seq is None:
            next_seq = following.next_seq if following is not None else 0
        offsets: dict[str, list[int]] = {}
        if following is not None:
            offsets = {topic_id: list(ends) for topic_id, ends in following.next_offsets.items()}
        seen = set()
        for demands in before:
            for (topic_id, queue_id), first in demands.offsets.items():
                ends = offsets.get(str(topic_id))
                if (topic_id, queue_id) not in seen and ends is not None and queue_id < len(ends):
                    ends[queue_id] = first
                seen.add((topic_id, queue_id))
        topics = following.topics if following is not None else []
        if not next_seq and not any(map(any, offsets.values())):
            return None
        return Base(next_seq, topics, offsets, _NO_TOTALS)
