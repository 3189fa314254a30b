"""Messages whose bytes in the commit log are damaged: listed, and shown as far as the index knows them.

What the index knows of such a message is put in the place of its content (`message_of_entry`,
`message_of_row`). That is never stored, delivered or compared, and every view that shows it says
`is_damaged`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from tidemill.core.answers import DamagedMessage
from tidemill.core.model import (
    NO_OFFSET,
    NO_SEQ,
    NO_TIME_MS,
    Handle,
    MessageType,
    StoredMessage,
)
from tidemill.log.arrays import Rows
from tidemill.store.damaged_messages import DamagedRow, damaged_messages
from tidemill.store.formats.entry_format import FLAG_FIFO, row_of
from tidemill.store.message_store import MessageStore

TopicFilter = Callable[[str], bool]


def damage_views(
    store: MessageStore, broker_id: str, limit: int, accepts_topic: TopicFilter = lambda _: True
) -> list[DamagedMessage]:
    """The first `limit` in the order of the log, of topics that are accepted."""
    views = (_view(store, broker_id, message) for message in damaged_messages(store))
    return list(islice((view for view in views if accepts_topic(view.topic)), limit))


def _view(store: MessageStore, broker_id: str, message: DamagedRow) -> DamagedMessage:
    topic = store.topics.by_id(message.topic_id)
    name = topic.name if topic is not None else ""
    is_pending = message.state == "pending"
    return DamagedMessage(
        topic=name,
        state=message.state,
        queue=message.queue_id,
        offset=_known(message.offset, NO_OFFSET),
        seq=_known(message.seq, NO_SEQ),
        message_id=message.message_id,
        id_hash=f"{message.id_hash:016x}" if message.id_hash else "",
        handle=Handle(broker_id, name, "", message.seq) if is_pending else None,
        deliver_at_ms=_known(message.deliver_at_ms, NO_TIME_MS),
        stored_at_ms=_known(message.stored_at_ms, NO_TIME_MS),
        released_at_ms=_known(message.released_at_ms, NO_TIME_MS),
        size=_known(message.size, 0),
        file=message.frame.path,
        position=message.frame.position,
        log_offset=message.frame.offset,
        row=row_of(message.place),
    )


def _known(value: int, nothing: int) -> int | None:
    return None if value == nothing else value


def message_of_entry(entry: Rows, *, message_id: str = "") -> StoredMessage:
    """A timed message, from its entry."""
    flags, stored_at_ms = int(entry["flags"]), int(entry["stored_at_ms"])
    return StoredMessage(
        id=message_id,
        topic_id=int(entry["topic_id"]),
        queue_id=int(entry["queue_id"]),
        type=MessageType.FIFO if flags & FLAG_FIFO else MessageType.DELAY,
        level=int(entry["level"]),
        flags=flags,
        tag="",
        keys=(),
        message_group="",
        born_at_ms=stored_at_ms,
        stored_at_ms=stored_at_ms,
        deliver_at_ms=int(entry["deliver_at_ms"]),
        properties={},
        body=b"",
    )


def message_of_row(topic_id: int, queue_id: int, row: Rows) -> StoredMessage:
    """A message in a queue, from its row there."""
    deliver_at_ms = int(row["deliver_at_ms"])
    is_timed = deliver_at_ms != NO_TIME_MS
    stored_at_ms = NO_TIME_MS if is_timed else int(row["released_at_ms"])
    return StoredMessage(
        id="",
        topic_id=topic_id,
        queue_id=queue_id,
        type=MessageType.DELAY if is_timed else MessageType.NORMAL,
        level=0,
        flags=0,
        tag="",
        keys=(),
        message_group="",
        born_at_ms=stored_at_ms,
        stored_at_ms=stored_at_ms,
        deliver_at_ms=deliver_at_ms,
        properties={},
        body=b"",
    )
