"""Where a log begins, written down before its head is cut: a missing first file cannot pass for a cut."""

from __future__ import annotations

from pathlib import Path

from tidemill.core.errors import CorruptionError
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import Disk

HEAD_FORMAT = 1
HEAD_BYTES = 8


def decode_head(content: bytes) -> int:
    """Offset at which the log begins: the whole content of the record, 8 bytes, little-endian."""
    if len(content) != HEAD_BYTES:
        raise CorruptionError(f"a log's head record has {HEAD_BYTES} bytes, this has {len(content)}")
    return int.from_bytes(content, "little")


class HeadRecord:
    """The files `head.*` of a log's directory."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._checkpoint = Checkpoint(disk, directory, "head", HEAD_FORMAT, decode_head)

    def load(self) -> int:
        """Offset at which the log begins; 0 where nothing was ever cut."""
        content = self._checkpoint.load()
        return decode_head(content) if content is not None else 0

    def make_safe(self) -> None:
        """What was loaded survives a power cut from now on."""
        self._checkpoint.make_safe()

    def save(self, head: int) -> None:
        """Durable when this returns, in both generations: an older head would make it look as if files were
        missing."""
        self._checkpoint.save(head.to_bytes(HEAD_BYTES, "little"), sync=True)
        self._checkpoint.keep_twice()
