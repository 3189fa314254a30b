"""The models of the admin API: what each request may hold and what each answer looks like.

Owns names, types and bounds, from which FastAPI makes the checks and the OpenAPI page (answers to queries:
`view_models.py`). Numbers are bounded so that no request reaches the broker with a value its formats cannot
hold; those of messages are left to the broker's admission, which refuses each message alone. Times are Unix
milliseconds and end in `_ms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticKnownError

from tidemill.core.limits import (
    ATTEMPTS_MAX,
    FRAME_ROWS_MAX,
    MAX_DELAY_MS,
    PROPERTIES_BYTES_MAX,
    QUEUES_PER_TOPIC_MAX,
    RECEIVE_COUNT_MAX,
    RECEIVE_WAIT_MS_MAX,
    RELEASE_RATE_MAX,
)
from tidemill.core.model import NO_TIME_MS, CancelAnswer, TopicType


def _number_in(value: Any) -> Any:
    if isinstance(value, (bool, str)):
        raise PydanticKnownError("int_type")
    return value


# Of numbers in a JSON body: the validator would take true for 1 and "5" for 5, as in a query.
AS_NUMBER = BeforeValidator(_number_in)
_LATEST_MS = 1 << 52
Moment = Annotated[int, Field(ge=0, le=_LATEST_MS, description="Unix milliseconds")]
MomentIn = Annotated[Moment, AS_NUMBER]
Whole = Annotated[int, AS_NUMBER]
Shift = Annotated[
    int, Field(ge=-MAX_DELAY_MS, le=_LATEST_MS, description="milliseconds, negative: earlier"), AS_NUMBER
]
Name = Annotated[str, Field(min_length=1, max_length=255)]
Key = Annotated[str, Field(min_length=1, max_length=PROPERTIES_BYTES_MAX)]
Tag = Annotated[str, Field(max_length=PROPERTIES_BYTES_MAX)]
Token = Annotated[str, Field(min_length=1, max_length=4096)]


def time_out(ms: int | None) -> int | None:
    return None if ms == NO_TIME_MS else ms


# Of the broker's values as JSON has them; of None they make None.
AS_TIME = BeforeValidator(time_out)
AS_TEXT = BeforeValidator(lambda value: None if value is None else str(value))
AS_NAME = BeforeValidator(lambda member: None if member is None else member.name.lower())
AS_LIST = BeforeValidator(lambda column: column.tolist())


class _Joined:
    """The attributes of several objects; of a name, the first that has it."""

    def __init__(self, views: Sequence[object]) -> None:
        self._views = views

    def __getattr__(self, name: str) -> Any:
        for view in self._views:
            if hasattr(view, name):
                return getattr(view, name)
        raise AttributeError(name)


class Out(BaseModel):
    """An answer, or a part of one."""

    model_config = ConfigDict(from_attributes=True)

    @classmethod
    def of(cls, *views: object, **more: object) -> Self:
        """Filled from attributes of the same names: `more` first, then the views in order."""
        if more:
            views = (SimpleNamespace(**more), *views)
        return cls.model_validate(views[0] if len(views) == 1 else _Joined(views))


class Request(BaseModel):
    """A request body: unknown names are refused, so that a slip of the pen does not pass for a default."""

    model_config = ConfigDict(extra="forbid")


class ErrorAnswer(Out):
    code: str
    message: str


class MessageIn(Request):
    """A message to send. At most one of `deliver_at_ms`, `delay_ms` and `level`.

    No field is bounded here: the broker's admission refuses one message of many alone, a model all of them.
    """

    topic: str
    body: str = Field("", description="the text, which may be empty; this or `body_base64` must be given")
    body_base64: str | None = Field(None, description="a body that is not text; instead of `body`")
    deliver_at_ms: Whole | None = Field(None, description="Unix milliseconds; a past time is due at once")
    delay_ms: Whole | None = Field(None, description="milliseconds, 0 or more")
    jitter_ms: Whole = Field(
        0, description="milliseconds: a random extra delay of at most this; with a time or a delay"
    )
    level: Whole = 0
    id: str | None = Field(
        None,
        description="chosen by the client: within an hour the same message is stored once, others refused",
    )
    keys: list[str] = []
    tag: str = ""
    message_group: str = Field("", description="consumer groups set to FIFO get its messages in order")
    properties: dict[str, str] = {}
    once: Literal["no", "keep", "replace"] = "no"


class SendResultOut(Out):
    message_id: str = Field(validation_alias="id")
    topic: str
    handle: Annotated[str | None, AS_TEXT] = Field(
        description="names the message for cancel and reschedule; null: not timed"
    )
    deliver_at_ms: Annotated[int | None, AS_TIME]
    is_repeat: bool = False
    note: str = ""
    queue: int | None = Field(
        None, description="where it went at once; null: it waits, and is in no queue yet"
    )
    offset: int | None = Field(None, description="in that queue")


class ManyIn(Request):
    messages: Annotated[list[MessageIn], Field(max_length=FRAME_ROWS_MAX)]
    all_or_none: bool = False


class AnswerOut(Out):
    """One of the two is set."""

    result: SendResultOut | None = None
    error: ErrorAnswer | None = None


class ManyOut(Out):
    answers: list[AnswerOut]


class ReceiveIn(Request):
    topic: Name
    group: Name
    count: Annotated[int, Field(ge=1, le=RECEIVE_COUNT_MAX), AS_NUMBER] = 32
    wait_ms: Annotated[int, Field(ge=0, le=RECEIVE_WAIT_MS_MAX), AS_NUMBER] = 0
    lease_ms: Annotated[int, Field(ge=1, le=MAX_DELAY_MS), AS_NUMBER] = Field(
        30_000, description="milliseconds until the messages are delivered again if they are not acknowledged"
    )
    tags: Annotated[list[Tag], Field(min_length=1)] | None = Field(
        None, description="only messages with one of these; the group skips the others permanently"
    )
    one_per_message_group: bool = Field(
        False,
        description="in a FIFO group: the second of a message group only when the first is settled",
    )


class DeliveryOut(Out):
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
    lease_until_ms: int
    via: str
    rolls: int | None = Field(
        description="how often it was placed again in the wheel; null: not timed, or unknown"
    )


class ReceiveOut(Out):
    deliveries: list[DeliveryOut]


class AckTokensIn(Request):
    ack_tokens: Annotated[list[Token], Field(max_length=FRAME_ROWS_MAX)]


class ExtendIn(AckTokensIn):
    lease_ms: Annotated[int, Field(ge=0, le=MAX_DELAY_MS), AS_NUMBER] = Field(
        description="milliseconds from now"
    )


class SettledOut(Out):
    settled: list[bool] = Field(description="false where the token is no longer the valid one")


class ChoiceIn(Request):
    """Which messages: by handles, or of a topic by key or by due time `[from_ms, to_ms)`."""

    handles: Annotated[list[Token], Field(max_length=FRAME_ROWS_MAX)] | None = None
    topic: Name | None = None
    key: Key | None = None
    from_ms: MomentIn | None = None
    to_ms: MomentIn | None = None


class RescheduleIn(ChoiceIn):
    """Where to: exactly one of the three."""

    deliver_at_ms: MomentIn | None = None
    delay_ms: Whole | None = Field(None, description="milliseconds from now, 0 or more")
    by_ms: Shift | None = None


class CancelOut(Out):
    cancelled: int
    answers: list[CancelAnswer] | None = Field(description="one for each handle")


class MovedOut(Out):
    answer: Literal["moved", "released", "already-cancelled", "unknown", "damaged"]
    handle: str | None
    deliver_at_ms: int | None


class RescheduleOut(Out):
    moved: int
    answers: list[MovedOut] | None = Field(description="one for each handle")


class TopicIn(Request):
    name: Name
    type: TopicType = TopicType.MIXED
    queues: Annotated[int, Field(ge=1, le=QUEUES_PER_TOPIC_MAX), AS_NUMBER] | None = None


class LimitIn(Request):
    per_second: Annotated[int, Field(ge=0, le=RELEASE_RATE_MAX), AS_NUMBER] = Field(
        description="releases a second; 0: no limit"
    )


class TopicOut(Out):
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


class TopicListOut(Out):
    topics: list[TopicOut]


class DeletedOut(Out):
    cancelled: int


class GroupIn(Request):
    max_attempts: Annotated[int, Field(ge=1, le=ATTEMPTS_MAX), AS_NUMBER] | None = None
    is_fifo: bool | None = None
    start: Literal["first", "last"] | None = None
    backoff: Annotated[str, Field(max_length=4096)] | None = Field(
        None, description="pauses after failed attempts, `10s 1m 5m`; empty: the levels from the third on"
    )


class GroupOut(Out):
    name: str
    max_attempts: int
    is_fifo: bool
    backoff: str = ""
    lag: dict[str, int] = Field(description="by topic: messages not handed out yet")
    unsettled: dict[str, int] = Field(description="by topic: handed out and not settled")


class GroupListOut(Out):
    groups: list[GroupOut]


class ResetIn(Request):
    topic: Name
    to_ms: MomentIn


class AdvanceIn(Request):
    """By a span or to a moment."""

    by_ms: Annotated[int, Field(ge=-MAX_DELAY_MS, le=MAX_DELAY_MS), AS_NUMBER] | None = None
    to_ms: MomentIn | None = None


class AdvancedOut(Out):
    now_ms: int


class BackupIn(Request):
    directory: Annotated[str, Field(min_length=1, max_length=4096)]


class CopyingOut(Out):
    """A backup under way."""

    done_bytes: int = Field(validation_alias="done")
    total_bytes: int = Field(validation_alias="total")


class BackupOut(Out):
    directory: str
    log_end: int
    files: int
    bytes: int
    pending: int


class DoneOut(Out):
    done: bool = True
