"""What can be read of a damaged consumer log: groups, cursors and what was acknowledged.

Owns the replay that goes on behind a damaged range. Behind one, a record may name an offset beyond the
cursor: what lies between was handed out or acknowledged by records that are lost. It counts as handed out
and visible again, so it is delivered (once more) rather than lost. A jump that is longer than the lost
records can explain is not followed: the group goes on from where it was.

Nothing is ever taken for acknowledged that no readable record acknowledges.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tidemill.log.read_only_disk import ReadOnlyDisk
from tidemill.store.consumers.consumer_log import (
    CONSUMER_FORMAT,
    CONSUMERS_NAME,
    decode_consumers,
    replay,
)
from tidemill.store.consumers.consumer_state import (
    ACT_CURSOR,
    ACT_SETTLE,
    ACT_SKIP,
    ACT_TAKE,
    CHANGE,
    ConsumerState,
    GroupQueue,
)
from tidemill.store.salvage.source import Damage, SourceLog, readable_checkpoints

_FIRST_ATTEMPT = 1
_AT_ONCE_MS = 0
_MOVES_CURSOR = (ACT_TAKE, ACT_SETTLE)


@dataclass(frozen=True, slots=True)
class Redelivery:
    """Offsets of a queue that a group may be given again though it had settled them."""

    group_queue: GroupQueue
    first: int
    end: int


@dataclass(slots=True)
class SalvagedConsumers:
    """The consumers' state as far as it can be read."""

    state: ConsumerState
    settled_below: int = 0  # commit-log offset below which settlements are included
    damages: list[Damage] = field(default_factory=list)
    redeliveries: list[Redelivery] = field(default_factory=list)
    lost_checkpoint: bool = False  # neither generation reads back, or only one that is too old
    unknown_groups: set[int] = field(default_factory=set)  # ids without a readable name

    @property
    def is_whole(self) -> bool:
        return not (self.damages or self.lost_checkpoint or self.unknown_groups)

    def queue_ends(self) -> dict[tuple[int, int], int]:
        """How far each queue is filled, at least: groups are never ahead of it."""
        ends: dict[tuple[int, int], int] = {}
        for (_, topic_id, queue_id), progress in self.state.group_queues():
            queue = topic_id, queue_id
            ends[queue] = max(ends.get(queue, 0), progress.next_offset)
        return ends


def read_consumers(disk: ReadOnlyDisk, directory: Path) -> SalvagedConsumers:
    """The consumers' state of a data directory; an empty one where it has none."""
    folder = directory / CONSUMERS_NAME
    source = SourceLog(disk, folder)
    found, offset = _from_checkpoint(disk, folder)
    if offset < source.head and source.starts:
        found.lost_checkpoint = True
    at = max(offset, source.head)
    for piece in source.pieces(offset):
        if isinstance(piece, Damage):
            if piece.end > at:
                found.damages.append(piece)
        elif piece.offset >= at:
            try:
                replay(piece, found.state, partial(_apply, found))
            except (ValueError, TypeError):  # a whole frame, of another log
                found.damages.append(Damage(source.file_of(piece.offset), piece.offset, piece.end, False))
    _drop_unknown_groups(found)
    return found


def _from_checkpoint(disk: ReadOnlyDisk, folder: Path) -> tuple[SalvagedConsumers, int]:
    readable = readable_checkpoints(disk, folder, "checkpoint", CONSUMER_FORMAT, decode_consumers)
    known = (content for content in readable if content.version <= CONSUMER_FORMAT)
    newest = max(known, key=lambda content: content.generation, default=None)
    if newest is None:
        was_there = any(disk.exists(folder / f"checkpoint.{n}") for n in (0, 1))
        has_log = bool(SourceLog(disk, folder).starts)
        return SalvagedConsumers(ConsumerState(), lost_checkpoint=was_there or has_log), 0
    offset, settled_below, state = decode_consumers(newest.content)
    return SalvagedConsumers(state, settled_below), offset


def _apply(found: SalvagedConsumers, changes: Any) -> None:
    if found.is_whole:
        found.state.apply(changes)
        return
    lost_changes_max = sum(damage.byte_count for damage in found.damages) // CHANGE.itemsize
    for index, change in enumerate(changes.tolist()):
        act, _, queue_id, group_id, topic_id, _, offset, _ = change
        group_queue = (group_id, topic_id, queue_id)
        if act in _MOVES_CURSOR and not _reached(found, group_queue, offset, lost_changes_max):
            continue
        if act in (ACT_CURSOR, ACT_SKIP, *_MOVES_CURSOR) or found.state.progress(group_queue) is not None:
            found.state.apply(changes[index : index + 1])


def _reached(found: SalvagedConsumers, group_queue: GroupQueue, offset: int, jump_max: int) -> bool:
    """Bring a group's cursor up to an offset; False where that is too far to follow."""
    progress = found.state.progress(group_queue)
    first = progress.next_offset if progress is not None else 0
    if offset <= first:
        return True
    if offset - first > jump_max:
        return False
    if progress is None:
        group_id, topic_id, queue_id = group_queue
        found.state.apply(np.array([(ACT_SKIP, 0, queue_id, group_id, topic_id, 0, 0, 0)], CHANGE))
        progress = found.state.progress(group_queue)
        assert progress is not None
    for skipped in range(first, offset):
        progress.put(skipped, _FIRST_ATTEMPT, _AT_ONCE_MS)
    progress.next_offset = offset
    found.redeliveries.append(Redelivery(group_queue, first, offset))
    return True


def _drop_unknown_groups(found: SalvagedConsumers) -> None:
    """Forget progress of groups whose settings are lost: a new group could be given the same id."""
    known = {group.id for group in found.state.groups()}
    for group_queue, _ in found.state.group_queues():
        if group_queue[0] not in known:
            found.unknown_groups.add(group_queue[0])
    for group_id in found.unknown_groups:
        found.state.forget_group(group_id)
