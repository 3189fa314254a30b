"""The log of consumer state: what was handed out, settled, put off; and the groups' settings.

Owns the directory `consumers/`: a segmented log of changes and a checkpoint. Every change is a row
(`CHANGE`) in a frame; a group's settings are JSON. Replaying goes through the same `ConsumerState.apply`.
When enough changes have gathered, the state is written as a checkpoint. The log is cut at the checkpoint
before that one, so that either generation can be damaged and the state is still known.
A directory has a checkpoint from its making on, so that one without is known to have lost it.

This is truth and cannot be derived again: what is damaged beyond that is refused.

Frame kinds: 1 opening (empty), 2 changes, 3 group. Checkpoint: JSON of the state, the log offset it
reflects, and the commit-log offset whose settlements it includes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from tidemill.core.errors import CorruptionError, StorageError
from tidemill.log.arrays import Rows
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import Disk
from tidemill.log.frame import Frame
from tidemill.log.group_commit import GroupCommit
from tidemill.log.row_table import MakeRoom
from tidemill.log.segments import SegmentedLog
from tidemill.store.consumers.consumer_state import (
    ACT_NAMES,
    ACT_SETTLE,
    CHANGE,
    ConsumerState,
    Group,
    GroupQueue,
)
from tidemill.store.formats.frames import Settlement

CONSUMERS_NAME = "consumers"
CONSUMER_FORMAT = 1
KIND_OPENING = 1
KIND_CHANGES = 2
KIND_GROUP = 3


def consumer_checkpoint(disk: Disk, directory: Path) -> Checkpoint:
    return Checkpoint(disk, directory, "checkpoint", CONSUMER_FORMAT, decode_consumers)


def begin_consumers(disk: Disk, directory: Path) -> None:
    """The first checkpoint, of no groups, durably."""
    disk.make_dir(directory)
    consumer_checkpoint(disk, directory).save(_content(0, 0, ConsumerState()), sync=True)
    disk.sync_dir(directory.parent)


def write_consumers(disk: Disk, directory: Path, settled_below: int, state: ConsumerState) -> None:
    """A checkpoint of this state in a directory with an empty consumer log, durably."""
    checkpoint = consumer_checkpoint(disk, directory)
    checkpoint.load_newest()  # so that this is the newer one
    checkpoint.save(_content(0, settled_below, state), sync=True)


def decode_consumers(content: bytes) -> tuple[int, int, ConsumerState]:
    """The consumer log's offset, the commit log's up to which it has the settlements, and the state."""
    saved = json.loads(content)
    return int(saved["offset"]), int(saved["settled_below"]), ConsumerState.from_dict(saved["state"])


def _content(offset: int, settled_below: int, state: ConsumerState) -> bytes:
    saved = {"offset": offset, "settled_below": settled_below, "state": state.as_dict()}
    return json.dumps(saved).encode()


def replay(frame: Frame, state: ConsumerState, apply: Callable[[Rows], None]) -> None:
    """Bring a frame's group into the state, or its changes by `apply`.

    `ValueError` or `TypeError` for a frame that is of another log.
    """
    if frame.kind == KIND_CHANGES:
        changes = np.frombuffer(frame.payload, CHANGE)
        if not np.isin(changes["act"], list(ACT_NAMES)).all():
            raise ValueError("unknown act")
        apply(changes)
    elif frame.kind == KIND_GROUP:
        state.put_group(Group(**json.loads(bytes(frame.payload))))


class ConsumerLog:
    """Appends changes, applies them, makes them safe. Thread-safe."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        *,
        segment_bytes: int,
        in_flight_max: int,
        is_sync: bool,
        make_room: MakeRoom = lambda: False,
        on_fault: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self.lock = threading.RLock()  # protects the state and the log's tail
        disk.make_dir(directory)
        self._directory = directory
        self._checkpoint = consumer_checkpoint(disk, directory)
        self._log = SegmentedLog(
            disk,
            directory,
            segment_bytes=segment_bytes,
            opening=lambda _: (KIND_OPENING, b""),
            make_room=make_room,
        )
        self._on_fault = on_fault
        self._commit = GroupCommit(self._log, in_flight_max=in_flight_max, is_sync=is_sync, on_fault=on_fault)
        self.state = ConsumerState()
        # What a frame of the commit log is about to settle: no other call may settle or deliver it meanwhile.
        self.settling: set[tuple[GroupQueue, int]] = set()
        self.changes_since_checkpoint = 0
        self.settled_below = 0  # commit-log offset below which settlements are in the checkpoint
        self._checkpoint_offset = 0  # of this log

    def recover(self) -> None:
        """Read the newest readable checkpoint and replay what came after it."""
        content = self._checkpoint.load()
        if content is not None:
            self._checkpoint_offset, self.settled_below, self.state = decode_consumers(content)
        start = self._checkpoint_offset
        try:
            if start < self._log.head:
                raise CorruptionError(
                    f"{self._directory}: a checkpoint is damaged or missing: the newest that reads back is "
                    f"of offset {start}, and the log begins at offset {self._log.head}. Nothing was changed. "
                    "Restore this directory from a backup, or copy what can be read: "
                    f"`tidemill salvage {self._directory.parent} --to NEW`"
                )
            for frame in self._log.recover(start, start):
                self._replay(frame)
        except CorruptionError as error:
            raise CorruptionError(
                f"{error}; or have every group begin again with all messages: "
                f"`tidemill rebuild --new-consumers {self._directory.parent}`"
            ) from error

    def _replay(self, frame: Frame) -> None:
        try:
            replay(frame, self.state, self.state.apply)
        except (ValueError, TypeError) as error:
            raise CorruptionError(
                f"{self._directory}: the frame at offset {frame.offset} is of another log. Restore this "
                "directory from a backup, or copy what can be read: "
                f"`tidemill salvage {self._directory.parent} --to NEW`"
            ) from error

    def append(self, changes: Rows, now_ms: int) -> int:
        """Log and apply changes; returns the end to `wait` for."""
        with self.lock:
            self._append(KIND_CHANGES, changes.tobytes(), now_ms)
            self.state.apply(changes)
            self.changes_since_checkpoint += len(changes)
            return self._log.written_end

    def _append(self, kind: int, content: bytes, now_ms: int) -> None:
        try:
            self._log.append(kind, [content], now_ms, reserved=True)
        except StorageError as fault:  # it is not known how much of the frame was written
            self._on_fault(fault)
            raise

    def put_group(self, group: Group, now_ms: int) -> int:
        with self.lock:
            self._append(KIND_GROUP, json.dumps(asdict(group)).encode(), now_ms)
            self.state.put_group(group)
            return self._log.written_end

    def wait(self, end: int) -> None:
        self._commit.wait(end)

    def settle_from_commit_log(self, settlements: Iterable[Settlement]) -> None:
        """Deliveries settled by a frame of the commit log: not logged here, that frame is their record."""
        settlements = list(settlements)
        with self.lock:
            for s in settlements:
                if (group := self.state.group(s.group)) is not None:
                    self.settling.discard(((group.id, s.topic_id, s.queue_id), s.offset))
            rows = [
                (ACT_SETTLE, 0, s.queue_id, group.id, s.topic_id, 0, s.offset, 0)
                for s in settlements
                if (group := self.state.group(s.group)) is not None
                # Only what is out: a replay must not carry the cursor past messages never handed out.
                and (progress := self.state.progress((group.id, s.topic_id, s.queue_id))) is not None
                and s.offset in progress.taken
            ]
            if rows:
                self.state.apply(np.array(rows, CHANGE))

    def settle_again(self, settlements: Iterable[tuple[int, Settlement]]) -> None:
        """Settlements met while the commit log was replayed, each with its frame's offset."""
        self.settle_from_commit_log(s for offset, s in settlements if offset >= self.settled_below)

    def save(self, commit_log_offset: int) -> None:
        """Write a checkpoint and cut the log before the one that was the newest until now.

        Every settlement of commit-log frames below `commit_log_offset` must have been given to this state.
        """
        with self.lock:
            offset = self._log.written_end
            content = _content(offset, commit_log_offset, self.state)
            self.changes_since_checkpoint = 0
        self._commit.wait_synced(offset)
        self._checkpoint.save(content, sync=True)
        with self.lock:
            self._log.cut_head(self._checkpoint_offset)
        self._checkpoint_offset = offset

    def snapshot(self, commit_log_offset: int) -> bytes:
        """A checkpoint's content for a copy that begins with an empty consumer log."""
        with self.lock:
            return _content(0, commit_log_offset, self.state)

    def sync(self) -> None:
        self._commit.wait_synced(self._log.written_end)

    def close(self) -> None:
        self._log.close()


def change_rows(
    act: int,
    group_queue: tuple[int, int, int],
    offsets: Sequence[int],
    attempts: Sequence[int] | int,
    visible_at_ms: int,
) -> Rows:
    """Rows of one act for several offsets of one group_queue."""
    group_id, topic_id, queue_id = group_queue
    rows = np.zeros(len(offsets), CHANGE)
    rows["act"] = act
    rows["group_id"], rows["topic_id"], rows["queue_id"] = group_id, topic_id, queue_id
    rows["offset"] = offsets
    rows["attempt"] = attempts
    rows["visible_at_ms"] = visible_at_ms
    return rows
