"""Plain messages in columns: what many small sends are made of, written as rows without a loop per message.

Owns the way from columns to a section in the row encoding (`message_format.py` says what its bytes mean and
reads them back). Plain is what nearly every single send is: on no level, in no message group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from tidemill.core.model import NO_TIME_MS, MessageType
from tidemill.log.arrays import I64, U8, U64
from tidemill.store.message_format import ROW, rows_header


@dataclass(frozen=True, slots=True)
class PlainRows:
    """Columns of messages that are all stored at the same moment. Texts are encoded already."""

    stored_at_ms: int
    topic_ids: I64
    queue_ids: I64
    flags: U8
    deliver_at_ms: I64  # NO_TIME_MS: not timed
    ids: Sequence[bytes]
    id_hashes: U64
    tags: Sequence[bytes] | None  # None: no message has any
    keys: Sequence[bytes] | None
    properties: Sequence[bytes] | None
    bodies: Sequence[bytes]
    born_at_ms: I64 | None = None  # None: all when they are stored

    def __len__(self) -> int:
        return len(self.bodies)

    def encode(self, queue_offsets: I64, first_seq: int) -> bytes:
        """A section in the row encoding."""
        count = len(self)
        rows = np.zeros(count, ROW)
        rows["born_at_ms"] = self.stored_at_ms if self.born_at_ms is None else self.born_at_ms
        rows["stored_at_ms"] = self.stored_at_ms
        rows["deliver_at_ms"] = self.deliver_at_ms
        rows["queue_offset"] = queue_offsets
        rows["topic_id"] = self.topic_ids
        rows["queue_id"] = self.queue_ids
        rows["type"] = np.where(self.deliver_at_ms != NO_TIME_MS, MessageType.DELAY, MessageType.NORMAL)
        rows["flags"] = self.flags
        columns = {
            "id_bytes": self.ids,
            "tag_bytes": self.tags,
            "keys_bytes": self.keys,
            "properties_bytes": self.properties,
            "body_bytes": self.bodies,
        }
        for name, texts in columns.items():
            if texts is not None:
                rows[name] = np.fromiter(map(len, texts), np.int64, count)
        given = [texts for texts in columns.values() if texts is not None]
        heap = chain.from_iterable(zip(*given, strict=True))
        return b"".join((rows_header(count, first_seq), rows.tobytes(), *heap))
