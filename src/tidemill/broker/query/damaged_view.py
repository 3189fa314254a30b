"""View of a message whose bytes are damaged: what the index knows of it, without a body.

Never stored, delivered or compared; every view that shows one says `is_damaged`.
"""

from __future__ import annotations

from tidemill.core.model import NO_TIME_MS, MessageType, StoredMessage
from tidemill.log.arrays import Rows
from tidemill.store.formats.entry_format import FLAG_FIFO


def message_of_entry(entry: Rows, *, message_id: str = "", keys: tuple[str, ...] = ()) -> StoredMessage:
    """A timed message, from its entry."""
    return _message(
        int(entry["topic_id"]),
        int(entry["queue_id"]),
        stored_at_ms=int(entry["stored_at_ms"]),
        deliver_at_ms=int(entry["deliver_at_ms"]),
        level=int(entry["level"]),
        flags=int(entry["flags"]),
        message_id=message_id,
        keys=keys,
    )


def message_of_row(topic_id: int, queue_id: int, row: Rows, *, keys: tuple[str, ...] = ()) -> StoredMessage:
    """A message in a queue, from its row there."""
    deliver_at_ms = int(row["deliver_at_ms"])
    stored_at_ms = int(row["released_at_ms"]) if deliver_at_ms == NO_TIME_MS else NO_TIME_MS
    return _message(
        topic_id,
        queue_id,
        stored_at_ms=stored_at_ms,
        deliver_at_ms=deliver_at_ms,
        level=0,
        flags=0,
        keys=keys,
    )


def _message(
    topic_id: int,
    queue_id: int,
    *,
    stored_at_ms: int,
    deliver_at_ms: int,
    level: int,
    flags: int,
    message_id: str = "",
    keys: tuple[str, ...] = (),
) -> StoredMessage:
    kind = MessageType.NORMAL if deliver_at_ms == NO_TIME_MS else MessageType.DELAY
    return StoredMessage(
        id=message_id,
        topic_id=topic_id,
        queue_id=queue_id,
        type=MessageType.FIFO if flags & FLAG_FIFO else kind,
        level=level,
        flags=flags,
        tag="",
        keys=keys,
        message_group="",
        born_at_ms=stored_at_ms,
        stored_at_ms=stored_at_ms,
        deliver_at_ms=deliver_at_ms,
        properties={},
        body=b"",
    )
