"""The results of the broker's queries and changes. All frozen.

The broker makes them, an embedded client returns them as they are, the HTTP API fills its models from them by
name, and the HTTP client reads them back. A time or place that is not known, or does not exist, is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidemill.core.model import CancelAnswer, Handle, TopicType


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """A timed message that still waits."""

    seq: int
    topic: str
    id: str
    keys: tuple[str, ...]
    tag: str
    stored_at_ms: int
    deliver_at_ms: int
    size: int  # bytes in the log: body, texts, and what the broker keeps with them
    handle: Handle  # without an id where the bytes are damaged; it still cancels the message
    is_damaged: bool = False  # its bytes are: id, keys and tag are not known, and it will not be delivered
    body_bytes: int | None = None  # None where the bytes are damaged
    waits_for: str | None = None  # why it is not in its topic although it is due; None: not due, or not known


@dataclass(frozen=True, slots=True)
class DamagedMessage:
    """A message whose bytes in the commit log are damaged, as far as it is known without them."""

    topic: str
    state: str  # pending, released, sent (at once), or open (a transaction)
    queue: int
    offset: int | None  # in its queue; None: in none
    seq: int | None  # None: not timed
    message_id: str  # empty where it is not known
    id_hash: str  # of topic and id, in hexadecimal; empty where it is not known
    handle: Handle | None  # cancels it, if it waits
    deliver_at_ms: int | None
    stored_at_ms: int | None
    released_at_ms: int | None
    size: int | None
    file: str
    position: int  # byte of the file at which its frame begins
    log_offset: int
    row: int  # which message of its frame it is, from 0


@dataclass(frozen=True, slots=True)
class Message:
    """A message handed to a consumer. `ack_token` settles it."""

    id: str
    topic: str
    body: bytes
    ack_token: str
    attempt: int
    keys: tuple[str, ...]
    tag: str
    message_group: str
    properties: Mapping[str, str]
    queue: int
    offset: int
    born_at_ms: int
    stored_at_ms: int
    deliver_at_ms: int | None
    released_at_ms: int
    lease_until_ms: int
    via: str
    rolls: int | None = None  # how often it was placed again in the wheel; None: not timed, or not known
    broker_properties: Mapping[str, str] = field(default_factory=dict)  # what the broker adds: never sent on

    @property
    def key(self) -> str:
        """Its first key, or an empty text."""
        return self.keys[0] if self.keys else ""

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()


@dataclass(frozen=True, slots=True)
class Moved:
    """The answer to one reschedule: the new handle, or (`answer`) why nothing moved."""

    handle: Handle | None = None
    deliver_at_ms: int | None = None
    answer: CancelAnswer | None = None

    @property
    def is_moved(self) -> bool:
        return self.handle is not None


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message found by its key, and what became of it."""

    id: str
    topic: str
    body: bytes
    keys: tuple[str, ...]
    tag: str
    properties: Mapping[str, str]
    stored_at_ms: int
    deliver_at_ms: int | None
    state: str  # pending, released or cancelled
    queue: int | None = None
    offset: int | None = None  # in its queue; None: in none
    released_at_ms: int | None = None
    is_damaged: bool = False  # its bytes are: only what the index knows is given
    broker_properties: Mapping[str, str] = field(default_factory=dict)  # what the broker adds: never sent on


class Minute(NamedTuple):
    """How many messages fall due within the minute that starts at `from_ms`."""

    from_ms: int
    due: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    type: TopicType
    queues: int
    is_paused: bool
    release_rate_max: int
    pending: int
    sent: int
    released: int
    cancelled: int
    visible: int


@dataclass(frozen=True, slots=True)
class GroupInfo:
    name: str
    max_attempts: int
    is_fifo: bool
    lag: Mapping[str, int]
    unsettled: Mapping[str, int]
    backoff: str = ""


@dataclass(frozen=True, slots=True)
class NackResult:
    """What became of a message that failed: `again`, `dead` or `invalid` (its token was spent)."""

    answer: str
    deliver_at_ms: int | None = None
    handle: Handle | None = None  # to cancel or reschedule it by; None where it stays in its queue
    note: str = ""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a group gave up on. `topic` is the one it was sent to."""

    id: str
    group: str
    topic: str
    body: bytes
    keys: tuple[str, ...]
    tag: str
    properties: Mapping[str, str]
    attempts: int
    died_at_ms: int
    stored_at_ms: int
    broker_properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """How the broker is. `fields` is the whole answer, as it came."""

    now_ms: int
    pending: int
    sent: int
    released: int
    cancelled: int
    runner: str
    lateness_p50_ms: float
    lateness_p99_ms: float
    lateness_max_ms: float
    fields: Mapping[str, object] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Holds:
    """Since when releases and absorbing are held for the whole broker; None: not held."""

    releases_since_ms: int | None
    absorbing_since_ms: int | None


@dataclass(frozen=True, slots=True)
class Backup:
    directory: str
    log_end: int
    files: int
    bytes: int
    pending: int
