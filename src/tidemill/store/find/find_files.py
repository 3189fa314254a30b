"""The files of the find index: written once, mapped, and verified when they are opened or merged.

Owns the names `<first offset>-<end offset>.run` of one directory and how such a file comes to be. Knows
nothing of which files belong together.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidemill.log.arrays import U64
from tidemill.log.disk import ByteArray, Disk, write_and_rename
from tidemill.store.find.find_runs import Pairs, Run
from tidemill.store.formats.find_format import (
    RUN_HEADER_BYTES,
    RunHeader,
    decode_run_header,
    encode_run_header,
    is_of_format_1,
    is_whole,
    named_checksum,
)

SUFFIX = ".run"


@dataclass(frozen=True, slots=True, eq=False)
class RunFile:
    """A written run, and which part of the log it reflects."""

    run: Run
    header: RunHeader
    path: Path
    checksum: int
    content: ByteArray

    @property
    def first_offset(self) -> int:
        return self.header.first_offset

    @property
    def end_offset(self) -> int:
        return self.header.end_offset


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file that is no run, and why. One of an older format is not damaged."""

    path: Path
    is_damaged: bool = True


def path_of(directory: Path, first_offset: int, end_offset: int) -> Path:
    return directory / f"{first_offset:020d}-{end_offset:020d}{SUFFIX}"


def map_run(disk: Disk, path: Path) -> RunFile | BadFile:
    """A run as its header describes it; its checksum is not looked at."""
    with closing(disk.open(path)) as file:
        size = file.size()
        start = file.read(0, RUN_HEADER_BYTES)
        header = decode_run_header(start, size)
        if header is None or path.name != path_of(path.parent, header.first_offset, header.end_offset).name:
            return BadFile(path, is_damaged=not is_of_format_1(start))
        content = file.map(size)
        pairs: U64 = content[RUN_HEADER_BYTES:].view("<u8")
        run = Run((pairs[: header.count], pairs[header.count :]))
        return RunFile(run, header, path, named_checksum(start), content)


def open_run(disk: Disk, path: Path) -> RunFile | BadFile:
    """A run whose checksum is right."""
    found = map_run(disk, path)
    if isinstance(found, BadFile):
        return found
    return found if is_whole(found.content) else BadFile(path)


def write_run(disk: Disk, directory: Path, pairs: Pairs, first_offset: int, end_offset: int) -> RunFile:
    """Write sorted pairs as a run, durably."""
    path = path_of(directory, first_offset, end_offset)
    header = encode_run_header(RunHeader(len(pairs[0]), first_offset, end_offset), pairs)
    columns = [np.ascontiguousarray(column).view(np.uint8).data for column in pairs]
    write_and_rename(disk, path.with_suffix(".tmp"), path, [header, *columns], sync=True)
    written = map_run(disk, path)
    assert isinstance(written, RunFile)
    return written
