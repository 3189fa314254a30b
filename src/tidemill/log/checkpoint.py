"""Small state written whole and read back whole: two generations, each with a checksum.

A checkpoint named `cursor` lives in `cursor.0` and `cursor.1`. Saving writes the older of the two, so
a crash in the middle leaves the other readable.

    offset  bytes  field
    0       4      magic "TMCP"
    4       4      format version of the content (the owner's)
    8       8      generation, rising
    16      8      content length
    24      4      CRC-32 of bytes 4..24 and the content
    28      4      zero
    32      n      content

All integers little-endian.

The owner brings a function that decodes its content. A generation that it cannot decode is the file of
another owner put in this place: it counts as damaged, so the other generation is used.

Invariant: after `save(sync=True)` returns, `load` gives that content or a later one, whatever happens.
"""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tidemill.core.errors import CorruptionError, NewerFormatError
from tidemill.log.disk import Bytes, Disk, read_file, write_parts

logger = logging.getLogger(__name__)

Decode = Callable[[bytes], object]  # raises one of `_NOT_ITS_CONTENT` for content of another owner

_MAGIC = b"TMCP"
_HEADER = struct.Struct("<4sIQQI4x")
# Up to here it is cheaper to join the parts than to write each.
_JOIN_BYTES_MAX = 64 * 1024
# What decoding raises that meets other content than it was made for.
_NOT_ITS_CONTENT = (
    CorruptionError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    struct.error,
)


@dataclass(frozen=True)
class CheckpointContent:
    version: int
    generation: int
    content: bytes


def decode_checkpoint(data: bytes) -> CheckpointContent | None:
    """The content of one generation's bytes, or None if they are torn or no checkpoint."""
    if len(data) < _HEADER.size:
        return None
    magic, version, generation, length, crc = _HEADER.unpack_from(data)
    content = data[_HEADER.size : _HEADER.size + length]
    if magic != _MAGIC or len(content) != length or crc != _crc(version, generation, [content]):
        return None
    return CheckpointContent(version, generation, content)


def is_content(found: CheckpointContent, version: int, decode: Decode) -> bool:
    """Whether this content can be decoded. Content of a newer version than `version` is not looked at."""
    if found.version > version:
        return True
    try:
        decode(found.content)
    except _NOT_ITS_CONTENT:
        return False
    return True


def _crc(version: int, generation: int, parts: Sequence[Bytes]) -> int:
    crc = zlib.crc32(struct.pack("<IQQ", version, generation, sum(map(len, parts))))
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc


class Checkpoint:
    """One named checkpoint in a directory."""

    def __init__(
        self, disk: Disk, directory: Path, name: str, version: int, decode: Decode = lambda _: None
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._paths = (directory / f"{name}.0", directory / f"{name}.1")
        self._version = version
        self._decode = decode
        self._generation = 0
        self._newest: Path | None = None  # the file that holds the generation; the other is written next
        # What an earlier process left may be shown and yet not be safe: names, and bytes whose sync failed.
        self._safe_names: set[Path] = set()
        self._is_unsure = False

    def load(self) -> bytes | None:
        """The newest whole content of this format, or None where there is none."""
        newest = self.load_newest()
        return newest.content if newest is not None and newest.version == self._version else None

    def load_kept(self, lost: str) -> bytes | None:
        """The same of what is kept twice; `CorruptionError` where it was written and reads back from neither.

        `lost` says what is not known then, and what to do.
        """
        content = self.load()
        if content is None and self.is_damaged():
            base = self._paths[0].with_suffix("")
            raise CorruptionError(f"{base}.0 and .1 are damaged or hold something else, so {lost}")
        return content

    def load_newest(self) -> CheckpointContent | None:
        """The newest whole content, which may be of an older format; None where there is none."""
        newest: CheckpointContent | None = None
        for path in self._paths:
            if not self._disk.exists(path):
                continue
            found = decode_checkpoint(read_file(self._disk, path))
            if found is not None and not is_content(found, self._version, self._decode):
                logger.warning("%s has unexpected content and is ignored", path)
            elif found is not None and (newest is None or found.generation > newest.generation):
                newest, self._newest = found, path
        if newest is None:
            return None
        if newest.version > self._version:
            raise NewerFormatError(
                f"{self._paths[0].with_suffix('')} has format {newest.version}, this Tidemill reads up to "
                f"{self._version}; use the newer Tidemill that wrote it"
            )
        self._generation = newest.generation
        self._is_unsure = True
        return newest

    def save(self, content: Bytes, *, sync: bool) -> None:
        """Write `content` as the next generation; with `sync` it survives a power cut."""
        self.save_parts([content], sync=sync)

    def save_parts(self, parts: Sequence[Bytes], *, sync: bool) -> None:
        """The same for content that comes in parts; joining large ones would hold the interpreter."""
        if sync:
            self.make_safe()  # before its only forerunner is overwritten
        generation, length = self._generation + 1, sum(map(len, parts))
        crc = _crc(self._version, generation, parts)
        header = _HEADER.pack(_MAGIC, self._version, generation, length, crc)
        joined: list[Bytes] = [b"".join((header, *parts))] if length <= _JOIN_BYTES_MAX else [header, *parts]
        first, second = self._paths
        target = self._paths[generation % 2]
        if self._newest is not None:
            target = second if self._newest == first else first
        self._write(target, joined, sync=sync)
        self._generation, self._newest = generation, target

    def keep_twice(self) -> None:
        """See that both generations hold the newest content: for what is written once and never again.

        So one damaged file is no harm. With both damaged there is nothing, and `is_damaged` says so.
        """
        if self._newest is None:
            return
        newest, other = self._newest, next(path for path in self._paths if path != self._newest)
        found = decode_checkpoint(read_file(self._disk, newest))
        kept = decode_checkpoint(read_file(self._disk, other)) if self._disk.exists(other) else None
        if found is not None and (kept is None or kept.content != found.content):
            self.save(found.content, sync=True)

    def is_damaged(self) -> bool:
        """Whether no generation reads back though one was written: both are there, or one has other content.

        One alone whose checksum fails may be a torn first write.
        """
        present = [
            decode_checkpoint(read_file(self._disk, path)) for path in self._paths if self._disk.exists(path)
        ]
        whole = [found for found in present if found is not None]
        if any(is_content(found, self._version, self._decode) for found in whole):
            return False
        return bool(whole) or len(present) == len(self._paths)

    def make_safe(self) -> None:
        """See that what was loaded survives a power cut: its writer may have been killed before it did."""
        if self._is_unsure and self._newest is not None:
            self._write(self._newest, [read_file(self._disk, self._newest)], sync=True)
            self._is_unsure = False

    def _write(self, path: Path, parts: Sequence[Bytes], *, sync: bool) -> None:
        with closing(self._disk.open(path, create=True)) as file:
            end = write_parts(file, parts)
            if file.size() > end:
                file.truncate(end)
            if sync:
                file.sync()
        if sync and path not in self._safe_names:
            self._disk.sync_dir(self._directory)
            self._safe_names.add(path)

    def remove(self) -> None:
        """Remove it, durably."""
        for path in self._paths:
            self._disk.remove(path)
        self._disk.sync_dir(self._directory)
        self._generation, self._newest = 0, None
        self._safe_names = set()
        self._is_unsure = False
