"""`tidemill dump FILE`: prints any file of a data directory, also while it is in use or damaged.

Owns finding out what a file is: by its first bytes, by its name and directory, or by `--as`. One directory is
dumped whole: the RocksDB timer store of a shard. Opens read-only, takes no lock, changes nothing.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from tidemill.cli.output import console
from tidemill.core.errors import CorruptionError, RequestError
from tidemill.log.disk import ByteArray, RealDisk
from tidemill.store.dump import dump_checkpoint, dump_entries, dump_find_run, dump_queue, dump_segment
from tidemill.timer.dump import (
    dump_attempt,
    dump_cursor,
    dump_header,
    dump_ready,
    dump_rocks,
    dump_slots,
    dump_target,
    dump_units,
    timer_reader,
)
from tidemill.timer.rocksdb.rocks_store import ROCKS_NAME

Line = dict[str, Any]


class FileKind(StrEnum):
    SEGMENT = "segment"
    CHECKPOINT = "checkpoint"
    ENTRIES = "entries"
    QUEUE = "queue"
    FIND = "find"
    TIMER_LOG = "timer-log"
    WHEEL = "wheel"
    CURSOR = "cursor"
    HEADER = "header"
    READY = "ready"
    TARGET = "target"
    ATTEMPT = "attempt"
    LOCK = "lock"
    ROOM = "room"


_BY_MAGIC = {
    b"TMFR": FileKind.SEGMENT,
    b"TMCP": FileKind.CHECKPOINT,
    b"TMFI": FileKind.FIND,
    b"TMRD": FileKind.READY,
    b"TMTG": FileKind.TARGET,
}
_LOCK_NAMES = ("LOCK", "lock")  # of the data directory, of a shard
_ROOM_NAMES = ("ballast", "spare", "next")  # for a full disk, for the log's next segments
_TIMER_KINDS: dict[Callable[[bytes], Iterator[Line]], FileKind] = {
    dump_units: FileKind.TIMER_LOG,
    dump_slots: FileKind.WHEEL,
    dump_cursor: FileKind.CURSOR,
    dump_header: FileKind.HEADER,
    dump_attempt: FileKind.ATTEMPT,
    dump_ready: FileKind.READY,
    dump_target: FileKind.TARGET,
}


def dump(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A file of a data directory, or a shard's rocksdb directory."),
    ],
    kind: Annotated[
        FileKind | None, typer.Option("--as", help="The format, where the name does not show it.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="How many frames or rows; 0 for all.")] = 100,
    messages: Annotated[int, typer.Option(min=0, help="How many messages of each frame.")] = 5,
    is_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Print any file of a data directory in readable form. Opens it read-only and takes no lock."""
    write = _json_line if is_json else _text_line
    if _is_rocks(file):
        _print(dump_rocks(RealDisk(), file), limit, write, is_json)
        return
    if not file.is_file():
        raise RequestError(f"{file} is not a file; name one file of a data directory")
    if _is_rocks(file.parent):
        raise RequestError(f"{file} is one of RocksDB's own files; dump the directory: {file.parent}")
    data = _mapped(file)
    shown = kind or _kind_of(file, data)
    if not is_json:
        print(f"{file}: {shown.value}, {len(data):,} bytes")
    try:
        _print(_lines(shown, file, data, messages), limit, write, is_json)
    except (CorruptionError, ValueError) as error:
        raise CorruptionError(f"{file} does not read as a {shown.value} file: {error}") from error


def _print(lines: Iterator[Line], limit: int, write: Callable[[Line], str], is_json: bool) -> None:
    """Print lines; messages do not count towards the limit, their frames do."""
    screen, printed = console(), 0
    for line in lines:
        if line.get("what") != "message":
            if limit and printed == limit:
                if not is_json:
                    screen.print("… more; --limit 0 prints everything", markup=False)
                return
            printed += 1
        screen.out(write(line), highlight=not is_json)
    if not printed and not is_json:
        screen.print("nothing in it yet", markup=False)


def _is_rocks(path: Path) -> bool:
    return path.name == ROCKS_NAME and (path / "CURRENT").is_file()


def _mapped(file: Path) -> ByteArray:
    if file.stat().st_size == 0:
        return np.empty(0, np.uint8)
    return np.memmap(file, np.uint8, "r")


def _kind_of(file: Path, data: ByteArray) -> FileKind:
    reader = timer_reader(file)
    if reader is not None:
        return _TIMER_KINDS[reader]
    by_magic = _BY_MAGIC.get(data[:4].tobytes())
    if by_magic is not None:
        return by_magic
    if file.name in _LOCK_NAMES:
        return FileKind.LOCK
    if file.name.split(".")[0] in _ROOM_NAMES:
        return FileKind.ROOM
    folders = [folder.name for folder in file.resolve().parents]
    if file.suffix == ".log" and file.stem.isdigit():
        return FileKind.SEGMENT
    if file.name.isdigit() and folders[0] == "entries":
        return FileKind.ENTRIES
    if file.name.isdigit() and "queues" in folders[:3]:
        return FileKind.QUEUE
    if len(data) and not data.any():
        raise CorruptionError(
            f"{file} holds {len(data):,} zeros, and its name is not that of preallocated space (ballast, "
            "spare)"
        )
    kinds = ", ".join(FileKind)
    raise CorruptionError(
        f"{file} is none of Tidemill's files, or badly damaged: neither its first bytes nor its name "
        f"identify it; if you know, pass --as ({kinds})"
    )


def _lines(kind: FileKind, file: Path, data: ByteArray, messages_max: int) -> Iterator[Line]:
    first = int(file.stem) if file.stem.isdigit() else None
    match kind:
        case FileKind.SEGMENT:
            return dump_segment(data, first, messages_max)
        case FileKind.ENTRIES:
            return dump_entries(data, first or 0)
        case FileKind.QUEUE:
            return dump_queue(data, first or 0)
        case FileKind.FIND:
            return dump_find_run(data)
        case FileKind.CHECKPOINT:
            return dump_checkpoint(data.tobytes())
        case FileKind.LOCK:
            return _lock_lines(data.tobytes())
        case FileKind.ROOM:
            return _room_lines(data)
    reader = next(reader for reader, timer_kind in _TIMER_KINDS.items() if timer_kind is kind)
    return reader(data.tobytes())


def _lock_lines(data: bytes) -> Iterator[Line]:
    """The last holder of the lock; whether it is still held only the kernel knows."""
    yield {"what": "lock", "last_taken_by": data.decode("utf-8", "replace").strip()}


def _room_lines(data: ByteArray) -> Iterator[Line]:
    if data.any():
        raise CorruptionError("it is not all zeros; if it was another file, pass --as")
    yield {"what": "room", "bytes": len(data), "note": "zeros: preallocated space, nothing in it"}


def _text_line(line: Line) -> str:
    what = str(line.get("what", ""))
    indent = "    " if what == "message" else ""
    pairs = (f"{name}={_text(value)}" for name, value in line.items() if name != "what")
    return indent + " ".join(itertools.chain([what] if what else [], pairs))


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    text = str(value)
    return repr(text) if isinstance(value, str) and (" " in text or not text.isprintable()) else text


def _json_line(line: Line) -> str:
    return json.dumps(line, ensure_ascii=False)
