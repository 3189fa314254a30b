"""The models of the admin API: what each request may hold and what each answer looks like.

Owns names, types and bounds, from which FastAPI makes the checks and the OpenAPI page. Every number is
bounded so that no request reaches the broker with a value its formats cannot hold; the rules for messages are
checked by the broker's admission. Times are Unix milliseconds and end in `_ms`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from tidemill.core.limits import (
    FRAME_ROWS_MAX,
    MAX_DELAY_MS,
    PROPERTIES_BYTES_MAX,
    QUEUES_PER_TOPIC_MAX,
    RECEIVE_WAIT_MS_MAX,
)
from tidemill.core.model import CancelAnswer, TopicType

_LATEST_MS = 1 << 52
Moment = Annotated[int, Field(ge=0, le=_LATEST_MS, description="Unix milliseconds")]
Span = Annotated[int, Field(ge=0, le=_LATEST_MS, description="milliseconds")]
Shift = Annotated[int, Field(ge=-MAX_DELAY_MS, le=_LATEST_MS, description="milliseconds, negative: earlier")]
Name = Annotated[str, Field(min_length=1, max_length=255)]
Key = Annotated[str, Field(min_length=1, max_length=PROPERTIES_BYTES_MAX)]
Tag = Annotated[str, Field(max_length=PROPERTIES_BYTES_MAX)]
Token = Annotated[str, Field(min_length=1, max_length=4096)]
RECEIVE_COUNT_MAX = 1024
LOOK_COUNT_MAX = 10_000


class Request(BaseModel):
    """A request body: unknown names are refused, so that a slip of the pen does not pass for a default."""

    model_config = ConfigDict(extra="forbid")


class ErrorAnswer(BaseModel):
    code: str
    message: str


class MessageIn(Request):
    """A message to send. At most one of `deliver_at_ms`, `delay_ms` and `level`."""

    topic: Name
    body: str = Field("", description="the text, which may be empty; this or `body_base64` must be given")
    body_base64: str | None = Field(None, description="a body that is not text; instead of `body`")
    deliver_at_ms: Annotated[int, Field(ge=-_LATEST_MS, le=_LATEST_MS)] | None = None
    delay_ms: Span | None = None
    jitter_ms: Span = Field(
        0, description="milliseconds: a random extra delay of at most this; with a time or a delay"
    )
    level: Annotated[int, Field(ge=-_LATEST_MS, le=_LATEST_MS)] = 0
    id: str | None = Field(
        None,
        description="chosen by the client: within an hour the same message is stored once, others refused",
    )
    keys: list[str] = []
    tag: str = ""
    message_group: str = Field("", description="consumer groups set to FIFO get its messages in order")
    properties: dict[str, str] = {}
    once: Literal["no", "keep", "replace"] = "no"


class SendResultOut(BaseModel):
    message_id: str
    topic: str
    handle: str | None = Field(description="names the message for cancel and reschedule; null: not timed")
    deliver_at_ms: int | None
    is_repeat: bool = False
    note: str = ""
    queue: int | None = Field(
        None, description="where it went at once; null: it waits, and is in no queue yet"
    )
    offset: int | None = Field(None, description="in that queue")


class ManyIn(Request):
    messages: Annotated[list[MessageIn], Field(max_length=FRAME_ROWS_MAX)]
    all_or_none: bool = False


class AnswerOut(BaseModel):
    """One of the two is set."""

    result: SendResultOut | None = None
    error: ErrorAnswer | None = None


class ManyOut(BaseModel):
    answers: list[AnswerOut]


class ReceiveIn(Request):
    topic: Name
    group: Name
    count: Annotated[int, Field(ge=1, le=RECEIVE_COUNT_MAX)] = 32
    wait_ms: Annotated[int, Field(ge=0, le=RECEIVE_WAIT_MS_MAX)] = 0
    invisible_ms: Annotated[int, Field(ge=1, le=MAX_DELAY_MS)] = 30_000
    tags: Annotated[list[Tag], Field(min_length=1)] | None = Field(
        None, description="only messages with one of these; the group skips the others permanently"
    )
    one_per_message_group: bool = Field(
        False,
        description="in a FIFO group: the second of a message group only when the first is settled",
    )


class DeliveryOut(BaseModel):
    message_id: str
    topic: str
    body: str | None = Field(description="null where it is not text; then `body_base64`")
    body_base64: str | None
    ack_token: str
    attempt: int
    keys: list[str]
    tag: str
    message_group: str
    properties: dict[str, str] = Field(description="as the sender gave them")
    broker_properties: dict[str, str] = Field(
        {}, description="what the broker adds (a retry, a dead letter); left out where there is nothing"
    )
    queue: int
    offset: int
    born_at_ms: int
    stored_at_ms: int
    deliver_at_ms: int | None
    released_at_ms: int
    invisible_until_ms: int
    via: str
    rolls: int | None = Field(
        description="how often it was placed again in the wheel ; null: not timed, or unknown"
    )


class ReceiveOut(BaseModel):
    deliveries: list[DeliveryOut]


class AckTokensIn(Request):
    ack_tokens: Annotated[list[Token], Field(max_length=FRAME_ROWS_MAX)]


class InvisibilityIn(AckTokensIn):
    invisible_ms: Annotated[int, Field(ge=0, le=MAX_DELAY_MS)]
    untried: bool = Field(False, description="returned untried: these deliveries count as no attempts")


class SettledOut(BaseModel):
    settled: list[bool] = Field(description="false where the token is no longer the valid one")


class ChoiceIn(Request):
    """Which messages: by handles, or of a topic by key or by due time `[from_ms, to_ms)`."""

    handles: Annotated[list[Token], Field(max_length=FRAME_ROWS_MAX)] | None = None
    topic: Name | None = None
    key: Key | None = None
    from_ms: Moment | None = None
    to_ms: Moment | None = None


class RescheduleIn(ChoiceIn):
    """Where to: exactly one of the three."""

    deliver_at_ms: Moment | None = None
    delay_ms: Span | None = None
    by_ms: Shift | None = None


class CancelOut(BaseModel):
    cancelled: int
    answers: list[CancelAnswer] | None = Field(description="one for each handle")


class MovedOut(BaseModel):
    answer: Literal["moved", "released", "already-cancelled", "unknown", "damaged"]
    handle: str | None
    deliver_at_ms: int | None


class RescheduleOut(BaseModel):
    moved: int
    answers: list[MovedOut] | None = Field(description="one for each handle")


class PendingOut(BaseModel):
    message_id: str
    topic: str
    keys: list[str]
    tag: str
    stored_at_ms: int
    deliver_at_ms: int
    size: int = Field(description="bytes in the log: body, texts, and what the broker keeps with them")
    handle: str
    is_damaged: bool = Field(
        False, description="its bytes are damaged: id, keys and tag are unknown; the handle cancels it"
    )
    body_bytes: int | None = Field(None, description="of the body alone; null where the bytes are damaged")


class PendingListOut(BaseModel):
    now_ms: int
    pending: list[PendingOut]


class MinuteOut(BaseModel):
    from_ms: int
    due: int


class ForecastOut(BaseModel):
    now_ms: int
    minutes: list[MinuteOut]


class FoundOut(BaseModel):
    message_id: str
    body: str | None
    body_base64: str | None
    keys: list[str]
    tag: str
    properties: dict[str, str]
    stored_at_ms: int
    deliver_at_ms: int | None
    state: str = Field(description="pending, released or cancelled")
    queue: int | None = None
    offset: int | None = None
    released_at_ms: int | None = None
    is_damaged: bool = Field(False, description="its bytes are damaged: only what the index knows is given")


class FoundListOut(BaseModel):
    messages: list[FoundOut]


class TopicIn(Request):
    name: Name
    type: TopicType = TopicType.MIXED
    queues: Annotated[int, Field(ge=1, le=QUEUES_PER_TOPIC_MAX)] | None = None


class LimitIn(Request):
    per_second: Annotated[int, Field(ge=0, le=1 << 40)] = Field(description="releases a second; 0: no limit")


class TopicOut(BaseModel):
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


class TopicListOut(BaseModel):
    topics: list[TopicOut]


class DeletedOut(BaseModel):
    cancelled: int


class GroupIn(Request):
    max_attempts: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    is_fifo: bool | None = None
    start: Literal["first", "last"] | None = None
    backoff: Annotated[str, Field(max_length=4096)] | None = Field(
        None, description="pauses after failed attempts, `10s 1m 5m`; empty: the levels from the third on"
    )


class GroupOut(BaseModel):
    name: str
    max_attempts: int
    is_fifo: bool
    backoff: str = ""
    lag: dict[str, int] = Field(description="by topic: messages not handed out yet")
    unsettled: dict[str, int] = Field(description="by topic: handed out and not settled")


class GroupListOut(BaseModel):
    groups: list[GroupOut]


class ResetIn(Request):
    topic: Name
    to_ms: Moment


class AdvanceIn(Request):
    """By a span or to a moment."""

    by_ms: Annotated[int, Field(ge=-MAX_DELAY_MS, le=MAX_DELAY_MS)] | None = None
    to_ms: Moment | None = None


class AdvancedOut(BaseModel):
    now_ms: int


class BackupIn(Request):
    directory: Annotated[str, Field(min_length=1, max_length=4096)]


class CopyingOut(BaseModel):
    """A backup under way."""

    done_bytes: int
    total_bytes: int


class BackupOut(BaseModel):
    directory: str
    log_end: int
    files: int
    bytes: int
    pending: int


class DoneOut(BaseModel):
    done: bool = True
