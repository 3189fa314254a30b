"""The tables for readers in volume: their columns, and what a reader may ask of them.

    pending    what waits                       history   each release: how late, and who handed it over
    messages   what is in the topics' queues    queues    where each queue begins and ends

Owns the columns' names, types and meaning, and `Wanted`: a request for rows and columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from tidemill.broker.query.table_conditions import FOREVER, Condition, bounds, only_value
from tidemill.core.errors import RequestError

FOREVER_MS = FOREVER
ALL_COLUMNS = "*"
TIME = pa.timestamp("ms", "UTC")

PENDING = pa.schema(
    [
        ("topic", pa.string()),
        ("id", pa.string()),
        ("seq", pa.int64()),
        ("key", pa.string()),
        ("tag", pa.string()),
        ("stored_at", TIME),
        ("deliver_at", TIME),
        ("level", pa.int32()),
        ("queue", pa.int32()),
        ("size", pa.int64()),
        ("message_group", pa.string()),
        ("properties", pa.string()),
        ("body", pa.binary()),
        ("handle", pa.string()),
    ]
)
HISTORY = pa.schema(
    [
        ("topic", pa.string()),
        ("id", pa.string()),
        ("seq", pa.int64()),
        ("deliver_at", TIME),
        ("released_at", TIME),
        ("lateness_ms", pa.int64()),
        ("via", pa.string()),  # near, embedded, spark, level: who handed it over
        ("runner", pa.string()),  # spark or embedded: which runner absorbed it; null if none did
        ("rolls", pa.int32()),  # how often it was placed again in the wheel; null where not known
        ("queue", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.string()),
    ]
)
MESSAGES = pa.schema(
    [
        ("topic", pa.string()),
        ("queue", pa.int32()),
        ("offset", pa.int64()),
        ("id", pa.string()),
        ("seq", pa.int64()),
        ("key", pa.string()),
        ("tag", pa.string()),
        ("message_group", pa.string()),
        ("properties", pa.string()),
        ("body", pa.binary()),
        ("born_at", TIME),
        ("stored_at", TIME),
        ("deliver_at", TIME),
        ("released_at", TIME),
        ("via", pa.string()),
        ("rolls", pa.int32()),
    ]
)
QUEUES = pa.schema(
    [
        ("topic", pa.string()),
        ("queue", pa.int32()),
        ("first_offset", pa.int64()),  # of the oldest message that is still kept
        ("end_offset", pa.int64()),  # behind the last one
    ]
)
TABLES = {"pending": PENDING, "history": HISTORY, "messages": MESSAGES, "queues": QUEUES}
_DEFAULT = {
    "pending": [n for n in PENDING.names if n not in ("message_group", "properties", "body", "handle")],
    "history": [n for n in HISTORY.names if n != "key"],
    "messages": MESSAGES.names,
    "queues": QUEUES.names,
}
# Columns that are in the messages' bytes, and what the message schema calls them.
STORED = {
    "id": "id",
    "key": "keys",
    "tag": "tag",
    "message_group": "message_group",
    "properties": "properties",
    "body": "body",
    "born_at": "born_at_ms",
    "stored_at": "stored_at_ms",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows and columns of a table are asked for."""

    table: str
    topic: str | None = None
    key: str | None = None
    from_ms: int = 0  # by the time they fall due (pending) or were released (history, messages)
    to_ms: int = FOREVER_MS
    columns: tuple[str, ...] = ()  # empty: the usual ones; `*`: all
    offsets: dict[int, int] = field(default_factory=dict)  # where each queue is read from
    until: dict[int, int] = field(default_factory=dict)  # and up to, but not at
    queues: tuple[int, ...] = ()  # empty: all
    from_seq: int = 0  # pending
    to_seq: int = FOREVER
    where: tuple[Condition, ...] = ()

    def schema(self) -> pa.Schema:
        """The columns that come; `RequestError` for one that is not there."""
        if self.table not in TABLES:
            raise RequestError(f"there is no table {self.table!r}; there are {', '.join(TABLES)}")
        known = TABLES[self.table]
        for condition in self.where:
            condition.check(known)
        if ALL_COLUMNS in self.columns:
            return known
        names = self.columns or _DEFAULT[self.table]
        if unknown := sorted(set(names) - set(known.names)):
            raise RequestError(f"unknown columns {unknown}; {self.table} has {known.names}")
        return pa.schema([known.field(name) for name in names])

    # -- what the conditions say, so that less is read ---------------------------------------------

    @property
    def only_topic(self) -> str | None:
        """The one topic whose rows may come; None: all of them."""
        return self.topic if self.topic is not None else only_value(self.where, "topic")

    @property
    def only_key(self) -> str | None:
        """A key that every row must have; known beforehand for what waits alone."""
        found = self.key if self.key is not None else only_value(self.where, "key")
        # A key has no blanks; the column has, where a message has several keys.
        return None if self.key is None and found is not None and (" " in found or not found) else found

    def time_range(self) -> tuple[int, int]:
        low, high = bounds(self.where, "deliver_at" if self.table == "pending" else "released_at")
        return max(self.from_ms, low), min(self.to_ms, high)

    def seq_range(self) -> tuple[int, int]:
        low, high = bounds(self.where, "seq")
        return max(self.from_seq, low), min(self.to_seq, high)

    def takes_queue(self, queue_id: int) -> bool:
        low, high = bounds(self.where, "queue")
        return (not self.queues or queue_id in self.queues) and low <= queue_id < high

    def offset_range(self, queue_id: int) -> tuple[int, int]:
        low, high = bounds(self.where, "offset")
        return max(self.offsets.get(queue_id, 0), low), min(self.until.get(queue_id, FOREVER), high)
