"""The directory of ready files of one shard: written by the engine, read and removed by the releaser.

Owns names and the order of writing. Leaves to others: when a file is settled and may go.

Invariants: a name is used once for ever; a file under its final name is whole and durable.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tidemill.core.errors import CorruptionError
from tidemill.log.arrays import U16
from tidemill.log.disk import Disk, read_file, write_and_rename
from tidemill.timer.ready_format import ReadyHeader, decode_ready, encode_ready
from tidemill.timer.ready_row_format import ReadyRows

READY_DIRECTORY_NAME = "ready"

_NAME = re.compile(r"(\d{3})-(\d{10})-(\d{12})\.ready")
_UNFINISHED = ".unfinished"


@dataclass(frozen=True, order=True, slots=True)
class ReadyName:
    """Orders as the files were written."""

    epoch: int
    step: int
    shard: int

    def __str__(self) -> str:
        return f"{self.shard:03d}-{self.epoch:010d}-{self.step:012d}.ready"


def parse_ready_name(name: str) -> ReadyName | None:
    """The parts of a ready file's name, or None where it is not one."""
    found = _NAME.fullmatch(name)
    return ReadyName(int(found[2]), int(found[3]), int(found[1])) if found else None


class ReadyFiles:
    """The ready files of one shard."""

    def __init__(self, disk: Disk, shard_directory: Path) -> None:
        self._disk = disk
        self.directory = shard_directory / READY_DIRECTORY_NAME

    def write(self, header: ReadyHeader, rows: ReadyRows, placements: U16) -> ReadyName:
        """Put a ready file there, durably; it appears whole or not at all."""
        name = ReadyName(header.epoch, header.step, header.shard)
        content = encode_ready(header, rows, placements)
        unfinished = self.directory / f"{name}{_UNFINISHED}"
        write_and_rename(self._disk, unfinished, self.directory / str(name), [content], sync=True)
        return name

    def names(self) -> list[ReadyName]:
        """All ready files there now, oldest first."""
        found = (parse_ready_name(name) for name in self._disk.names(self.directory))
        return sorted(name for name in found if name)

    def read(self, name: ReadyName) -> tuple[ReadyHeader, ReadyRows, U16]:
        """Header, rows and placements of one file; `CorruptionError` if its bytes were changed."""
        path = self.directory / str(name)
        header, rows, placements = decode_ready(read_file(self._disk, path))
        if (header.epoch, header.step, header.shard) != (name.epoch, name.step, name.shard):
            raise CorruptionError(f"{path}: the name does not belong to the content")
        return header, rows, placements

    def remove(self, name: ReadyName) -> None:
        """Forget one file, because every message in it is settled. A power cut may bring it back."""
        self._disk.remove(self.directory / str(name))

    def sweep(self) -> None:
        """Remove what unfinished writes left; needs the shard's lock."""
        for name in self._disk.names(self.directory):
            if name.endswith(_UNFINISHED):
                self._disk.remove(self.directory / name)
