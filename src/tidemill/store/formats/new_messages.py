"""Messages that are about to be written, in columns; and what the indexes learn of them once they are.

A number stands for a column in which all rows are the same, None for a text column in which no row has any.
Texts are encoded already, as a list or as an Arrow array; which of them decides about the encoding in the
log (`rows.py`, `arrow.py`).

What was just written is applied from its columns, and not read back from the log as other frames are: that is
a third of what a small batch costs. Invariant: the columns of what is written are those that its bytes give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tidemill.core.frozen import frozen
from tidemill.core.model import NO_TIME_MS, StoredMessage
from tidemill.log.arrays import I64, U64, each_of
from tidemill.log.disk import Bytes
from tidemill.store.find.hashing import PURPOSE_ID, topic_seeds
from tidemill.store.formats.message_format import Columns, encode_properties
from tidemill.store.formats.texts import Texts, hash_column, some_rows


@frozen
class Written:
    """A section that was just encoded: its bytes, and what reading them back would give."""

    parts: list[Bytes]
    size: int  # of all parts, in bytes
    count: int
    first_seq: int
    known: Columns
    timed: I64  # rows that are
    has_levels: bool

    def columns(self) -> Columns:
        return self.known


@frozen
class NewMessages:
    """Columns of messages that are stored together."""

    count: int
    timed: I64  # rows that are
    stored_at_ms: I64 | int
    born_at_ms: I64 | int
    deliver_at_ms: I64 | int  # NO_TIME_MS: not timed
    topic_ids: I64 | int
    queue_ids: I64 | int
    types: I64 | int
    flags: I64 | int
    levels: I64 | int
    ids: Texts
    id_hashes: U64
    bodies: Texts
    tags: Texts | None = None
    keys: Texts | None = None
    groups: Texts | None = None
    properties: Texts | None = None
    bounds: Sequence[tuple[int, int]] = ()  # of the frames they need; none: one frame

    @property
    def is_arrow(self) -> bool:
        return not isinstance(self.bodies, list)

    @property
    def are_all_timed(self) -> bool:
        return len(self.timed) == self.count

    def places(self) -> tuple[I64, I64, I64]:
        """Topic id, queue and due time of each message."""
        count = self.count
        columns = self.topic_ids, self.queue_ids, self.deliver_at_ms
        topic_ids, queue_ids, due = (each_of(column, count) for column in columns)
        return topic_ids, queue_ids, due

    def rows(self, which: I64) -> NewMessages:
        """Some of the messages, for one frame."""
        return replace(self, **{**some_rows(self, which, ("bounds",)), "bounds": ()})


def new_messages(messages: Sequence[StoredMessage]) -> NewMessages:
    """Messages as they are, in columns."""

    def numbers(name: str) -> I64:
        return np.array([getattr(message, name) for message in messages], np.int64)

    def texts(values: list[str]) -> Texts | None:
        return [value.encode() for value in values] if any(values) else None

    topic_ids, due = numbers("topic_id"), numbers("deliver_at_ms")
    ids = [message.id.encode() for message in messages]
    return NewMessages(
        count=len(messages),
        timed=(due != NO_TIME_MS).nonzero()[0],
        stored_at_ms=numbers("stored_at_ms"),
        born_at_ms=numbers("born_at_ms"),
        deliver_at_ms=due,
        topic_ids=topic_ids,
        queue_ids=numbers("queue_id"),
        types=numbers("type"),
        flags=numbers("flags"),
        levels=numbers("level"),
        ids=ids,
        id_hashes=hash_column(ids, topic_seeds(topic_ids, PURPOSE_ID)),
        bodies=[message.body for message in messages],
        tags=texts([message.tag for message in messages]),
        keys=texts([" ".join(message.keys) for message in messages]),
        groups=texts([message.message_group for message in messages]),
        properties=texts([encode_properties(message.properties) for message in messages]),
    )
