"""Any timer file, readable: what `tidemill dump` prints for them.

Owns the choice of words only; the bytes are decoded by the formats. Reads through the disk, changes nothing.
Files of RocksDB are read all at once, by their directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tidemill.core.durations import format_time
from tidemill.core.errors import CorruptionError
from tidemill.core.model import rolls_of
from tidemill.log.checkpoint import decode_checkpoint
from tidemill.log.disk import Disk
from tidemill.timer.attempt_format import ATTEMPT_NAME, decode_attempt
from tidemill.timer.cursor import CURSOR_NAME, decode_cursor
from tidemill.timer.ready_files import parse_ready_name
from tidemill.timer.ready_format import decode_ready
from tidemill.timer.rocksdb.rocks_check import all_keys
from tidemill.timer.rocksdb.rocks_format import KEY_BYTES, decode_note, first_key_at
from tidemill.timer.shard_header import HEADER_NAME, decode_header
from tidemill.timer.target import TARGET_NAME, decode_target
from tidemill.timer.wheel.timer_log_format import UNIT, UNIT_BYTES, whole_count
from tidemill.timer.wheel.wheel_format import SLOT
from tidemill.timer.wheel.wheel_store import TIMER_LOG_NAME, WHEEL_NAME

Line = dict[str, Any]


def dump_units(data: bytes) -> Iterator[Line]:
    """Units of one TimerLog segment, up to the first that is none (the blank, or the end)."""
    units = np.frombuffer(data, UNIT, len(data) // UNIT_BYTES)
    for row, unit in enumerate(units[: whole_count(units)]):
        line: Line = {"offset": row * UNIT_BYTES}
        line.update({name: int(unit[name]) for name in UNIT.names or ()})
        line["slot_time"] = format_time(line["enqueue_ms"] + line["delayed_ms"])
        yield line


def dump_slots(data: bytes) -> Iterator[Line]:
    """Slots of a wheel that were ever written."""
    slots = np.frombuffer(data, SLOT, len(data) // SLOT.itemsize)
    for number in np.flatnonzero(slots["num"] > 0).tolist():
        yield {"slot": number, **{name: int(slots[number][name]) for name in SLOT.names or ()}}


def dump_ready(data: bytes) -> Iterator[Line]:
    """Header and rows of a ready file."""
    header, rows, placements = decode_ready(data)
    yield {**asdict(header), "runner": header.runner.name.lower(), "count": len(rows)}
    for (deliver_at_ms, seq), placement in zip(rows.tolist(), placements.tolist(), strict=True):
        yield {
            "seq": seq,
            "deliver_at_ms": deliver_at_ms,
            "deliver_at": format_time(deliver_at_ms),
            "rolls": rolls_of(placement),
        }


def dump_cursor(data: bytes) -> Iterator[Line]:
    """One generation of a cursor."""
    generation, content = _checkpoint(data)
    yield {"generation": generation, **asdict(decode_cursor(content))}


def dump_attempt(data: bytes) -> Iterator[Line]:
    """One generation of the last step number that a shard has used."""
    generation, content = _checkpoint(data)
    epoch, step = decode_attempt(content)
    yield {"generation": generation, "epoch": epoch, "step": step}


def dump_header(data: bytes) -> Iterator[Line]:
    """One generation of a shard's header."""
    generation, content = _checkpoint(data)
    settings, shard = decode_header(content)
    yield {"generation": generation, "shard": shard, **asdict(settings)}


def dump_rocks(disk: Disk, directory: Path) -> Iterator[Line]:
    """The cursor and the keys of a RocksDB timer store, read beside the process that has it open."""
    with closing(disk.sorted_keys(directory, KEY_BYTES, read_only=True)) as keys:
        note = keys.note()
        if note is not None:
            cursor, resume_key = decode_note(note)
            yield {"what": "cursor", **asdict(cursor), "resume_key": resume_key.hex()}
        for part in all_keys(keys, first_key_at(0)):
            for due_ms, topic_id, id_hash, seq in part.tolist():
                yield {
                    "seq": seq,
                    "deliver_at_ms": due_ms,
                    "deliver_at": format_time(due_ms),
                    "topic_id": topic_id,
                    "id_hash": f"{id_hash:016x}",
                }


def dump_target(data: bytes) -> Iterator[Line]:
    target = decode_target(data)
    yield {**asdict(target), "now": format_time(target.now_ms)}


def timer_reader(path: Path) -> Callable[[bytes], Iterator[Line]] | None:
    """What reads a timer file of this name; None if it is none by its name."""
    if path.parent.name == TIMER_LOG_NAME and path.name.isdigit():
        return dump_units
    if parse_ready_name(path.name):
        return dump_ready
    by_stem = {
        WHEEL_NAME: dump_slots,
        ATTEMPT_NAME: dump_attempt,
        CURSOR_NAME: dump_cursor,
        HEADER_NAME: dump_header,
        TARGET_NAME: dump_target,
    }
    return by_stem.get(path.name.split(".")[0])


def _checkpoint(data: bytes) -> tuple[int, bytes]:
    found = decode_checkpoint(data)
    if found is None:
        raise CorruptionError("this generation is torn; the other one counts")
    return found.generation, found.content
