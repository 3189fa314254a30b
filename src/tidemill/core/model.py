"""The values that pass between layers: what is sent, stored, answered and received. All frozen.

Units are in the names; a time of -1 means "none".
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import field
from enum import Enum, IntEnum, StrEnum

from tidemill.core.errors import IllegalHandleError
from tidemill.core.frozen import frozen

NO_TIME_MS = -1
NO_SEQ = -1
NO_QUEUE = -1
NO_OFFSET = -1
SEQ_MAX = (1 << 62) - 1
_NO_HANDLES = ("", "None", "null")  # a handle that is missing, as languages write it

# A timed message's placements: one for the way to its time, and one more for each roll; 0 where not counted.
NOT_COUNTED = 0
NEVER_ROLLED = 1
PLACEMENTS_MAX = (1 << 16) - 1


def rolls_of(placements: int) -> int | None:
    """How often a message was rolled; None where not counted."""
    return None if placements == NOT_COUNTED else placements - 1


class MessageType(IntEnum):
    """What a message is; a topic says which of them it takes."""

    NORMAL = 0
    DELAY = 1
    FIFO = 2
    TRANSACTION = 3


class TopicType(StrEnum):
    NORMAL = "normal"
    DELAY = "delay"
    FIFO = "fifo"
    TRANSACTION = "transaction"
    MIXED = "mixed"


class Once(Enum):
    """What a send does when a message with its key is still pending."""

    NO = "no"
    KEEP = "keep"  # answer with the pending one
    REPLACE = "replace"  # move the pending one to the new time


class CancelAnswer(StrEnum):
    CANCELLED = "cancelled"
    RELEASED = "released"
    ALREADY_CANCELLED = "already-cancelled"
    UNKNOWN = "unknown"
    DAMAGED = "damaged"  # of a reschedule: it waits, and its bytes are damaged, so it cannot be moved


class Via(IntEnum):
    """Who handed a released message to the releaser."""

    DIRECT = 0  # not a timed message
    NEAR = 1
    EMBEDDED = 2
    SPARK = 3
    LEVEL = 4


@frozen
class Draft:
    """A message as a caller gives it. At most one of `deliver_at_ms`, `delay_ms` and `level`."""

    topic: str
    body: bytes
    deliver_at_ms: int | None = None
    delay_ms: int | None = None
    level: int = 0
    id: str | None = None
    keys: tuple[str, ...] = ()
    tag: str = ""
    message_group: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    born_at_ms: int | None = None
    once: Once = Once.NO
    jitter_ms: int = 0  # it falls due up to so much later than asked, by chance; needs a time or a delay
    has_made_id: bool = False  # by a library that may give another message the same one
    # Fields of RocketMQ's message that are kept as properties (`core/property_names.py`); never a caller's.
    carried: Mapping[str, str] = field(default_factory=dict)

    @property
    def kept_properties(self) -> dict[str, str]:
        """The properties that the message will be stored with."""
        return {**self.properties, **self.carried} if self.carried else dict(self.properties)


@frozen
class Handle:
    """Names one timed message for cancel and reschedule. Opaque to callers: pass `str(handle)` around."""

    broker: str
    topic: str
    id: str
    seq: int

    def __str__(self) -> str:
        text = "\n".join(("t1", self.broker, self.topic, self.id, str(self.seq)))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Handle:
        """Read a handle back; `IllegalHandleError` if it never was one."""
        try:
            padded = text.strip() + "=" * (-len(text.strip()) % 4)
            version, broker, topic, message_id, seq = base64.urlsafe_b64decode(padded).decode().split("\n")
            if version != "t1" or not 0 <= int(seq) <= SEQ_MAX:
                raise ValueError(version)
            return cls(broker, topic, message_id, int(seq))
        except (ValueError, binascii.Error, UnicodeError):
            raise IllegalHandleError(
                f"not a handle: {text[:80]!r}; pass the handle that the send answered with"
                + (", which a message that is not timed does not have" if text in _NO_HANDLES else "")
            ) from None


@frozen
class SendResult:
    """The answer to one send."""

    id: str
    topic: str
    handle: Handle | None  # None for a message that is not timed
    deliver_at_ms: int | None  # None for a message that is not timed
    is_repeat: bool = False  # the message was there already: same id, or once by key
    note: str = ""
    queue: int | None = (
        None  # that a message went into at once; None for one that waits: it is in no queue yet
    )
    offset: int | None = None  # in that queue


@frozen
class StoredMessage:
    """A message as it lies in the log."""

    id: str
    topic_id: int
    queue_id: int
    type: MessageType
    level: int
    flags: int  # store.entry_format.FLAG_*
    tag: str
    keys: tuple[str, ...]
    message_group: str
    born_at_ms: int
    stored_at_ms: int
    deliver_at_ms: int
    properties: Mapping[str, str]
    body: bytes


@frozen
class Delivery:
    """A message handed to a consumer, and the token to settle it with."""

    topic: str
    group: str
    queue_id: int
    offset: int
    attempt: int
    invisible_until_ms: int
    ack_token: str
    released_at_ms: int
    via: Via
    rolls: int | None  # None: not timed, or not known
    message: StoredMessage
