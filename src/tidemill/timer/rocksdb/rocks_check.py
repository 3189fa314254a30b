"""What must hold in a shard that RocksDB keeps: between its keys, its own cursor and the copy in the file.

Reads only, and while others have it open, in bounded parts. Findings are lines of text.

Invariant: a shard that was left in order, by a step or by an opening, has no findings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tidemill.log.arrays import U64
from tidemill.log.disk import Disk
from tidemill.log.sorted_keys import SortedKeys
from tidemill.timer.cursor import Cursor
from tidemill.timer.rocksdb.rocks_format import (
    KEY_BYTES,
    NO_KEY,
    TIMER_KEY,
    TimerKeys,
    decode_note,
    first_key_at,
    key_after,
)
from tidemill.timer.rocksdb.rocks_store import ROCKS_NAME
from tidemill.timer.settings import TimerSettings

_PART_KEYS = 1 << 18


def check_rocks(
    disk: Disk, directory: Path, settings: TimerSettings, shard: int, cursor: Cursor, *, is_crashed: bool
) -> Iterator[str]:
    """Findings in one shard directory; `cursor` is the copy in its file."""
    if not disk.exists(directory / ROCKS_NAME / "CURRENT"):
        yield f"{ROCKS_NAME} is missing"
        return
    with closing(disk.sorted_keys(directory / ROCKS_NAME, KEY_BYTES, read_only=True)) as keys:
        note = keys.note()
        if note is None:
            yield "RocksDB has no cursor"
            return
        own, resume_key = decode_note(note)
        yield from _check_cursors(own, cursor, resume_key, is_crashed)
        yield from _check_keys(keys, settings, shard, own, resume_key)


def _check_cursors(own: Cursor, copy: Cursor, resume_key: bytes, is_crashed: bool) -> Iterator[str]:
    if (copy.epoch, copy.step) > (own.epoch, own.step):
        yield f"the cursor's file is ahead of RocksDB: step {copy.step} after {own.step}"
    elif copy != own and not is_crashed:
        yield f"the cursor's file is behind RocksDB: step {copy.step}, not {own.step}"
    if own.is_inside_slot != (resume_key != NO_KEY):
        yield "cursor and last key handed over do not agree on whether a slot was begun"


@dataclass
class _Waiting:
    """What a walk over the keys has seen of timers that wait."""

    next_due_tick: int | None = None
    seqs: list[U64] = field(default_factory=list)
    foreign_count: int = 0

    def see(self, keys: TimerKeys, tick_ms: int, shard: int, shards: int) -> None:
        if self.next_due_tick is None and len(keys):
            self.next_due_tick = int(keys["due_ms"][0]) // tick_ms
        seqs = keys["seq"].astype(np.uint64)
        self.seqs.append(seqs)
        self.foreign_count += int((seqs % shards != shard).sum())


def _check_keys(
    keys: SortedKeys, settings: TimerSettings, shard: int, cursor: Cursor, resume_key: bytes
) -> Iterator[str]:
    first = first_key_at(cursor.tick * settings.tick_ms)
    if cursor.is_inside_slot:
        first = key_after(resume_key)
    waiting = _Waiting()
    for part in all_keys(keys, first):
        # A key the cursor has not absorbed was left by a step that did not end; it will be put there again.
        waiting.see(part[part["seq"] < cursor.seq], settings.tick_ms, shard, settings.shards)
    if waiting.next_due_tick != cursor.next_due_tick:
        yield f"the next due tick is {waiting.next_due_tick}, the cursor says {cursor.next_due_tick}"
    if waiting.foreign_count:
        yield f"{waiting.foreign_count} keys belong to another shard"
    seqs = np.concatenate(waiting.seqs) if waiting.seqs else np.empty(0, np.uint64)
    if len(np.unique(seqs)) < len(seqs):
        yield "a seq waits twice"


def all_keys(keys: SortedKeys, first: bytes) -> Iterator[TimerKeys]:
    """Every key from `first` on, in order, in parts."""
    end = b"\xff"
    while len(part := keys.scan(first, end, _PART_KEYS)):
        yield part.view(TIMER_KEY)
        first = key_after(part[-1].tobytes())
