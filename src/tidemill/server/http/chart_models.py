"""The models of the dashboard's charts: columns of numbers, which a chart uses as they are.

Owns names and types, like `http_models.py`, for the chart endpoints.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from tidemill.core.limits import MAX_DELAY_MS

Step = Annotated[int, Field(ge=1_000, le=MAX_DELAY_MS, description="milliseconds, at least 1000")]


class DueTopicOut(BaseModel):
    topic: str | None = Field(description="null: all the topics that are not named")
    due: list[int]


class DueWindowOut(BaseModel):
    now_ms: int
    from_ms: int
    step_ms: int
    due: list[int] = Field(description="how many fall due in each step")
    topics: list[DueTopicOut] = Field(description="the same by topic, the largest first")
    before: int = Field(description="due before the window")
    later: int = Field(description="due after it")


class PendingCountOut(BaseModel):
    now_ms: int
    messages: int


class DialOut(BaseModel):
    turn_ms: int
    sector_ms: int
    loads: list[int] = Field(description="by sector of the turn, beginning at multiples of `turn_ms`")


class ShardOut(BaseModel):
    drained_to_ms: int = Field(description="everything due before this was handed to the releaser")
    absorbed_seq: int
    step: int


class WheelOut(BaseModel):
    now_ms: int
    has_wheel: bool = Field(description="false where the timer store is another one")
    tick_ms: int
    slots: int
    window_slots: int = Field(
        description="what lies further ahead waits in a nearer slot, to be placed again"
    )
    timers: int
    filled_slots: int
    fullest: int
    fullest_at_ms: int | None
    shards: list[ShardOut]
    dials: list[DialOut]


class MetricsHistoryOut(BaseModel):
    """Running totals: the difference of two samples is what happened between them."""

    now_ms: int
    every_ms: int
    at_ms: list[int]
    sent: list[int]
    released: list[int]
    cancelled: list[int]
    pending: list[int]
    bounds_ms: list[float] = Field(description="upper bounds of the buckets of lateness; the last has none")
    lateness: list[list[int]] = Field(description="for each sample: releases by bucket")


class StepOut(BaseModel):
    at_ms: int
    runner: str
    steps: int
    rows: int
    drained_to_ms: int


class StepListOut(BaseModel):
    now_ms: int
    steps: list[StepOut] = Field(description="newest first")


class EventOut(BaseModel):
    what: str = Field(description="stored, rescheduled, kept (moved on by retention), released, cancelled")
    at_ms: int | None = Field(description="null: no longer known")
    deliver_at_ms: int | None


class ShardPositionsOut(BaseModel):
    group: str
    standing: str = Field(description="waiting, taken, settled")
    attempt: int


class MessageOut(BaseModel):
    topic: str
    message_id: str
    handle: str
    state: str = Field(description="pending, released, cancelled")
    body: str | None = Field(description="null where it is not text; then `body_base64`")
    body_base64: str | None
    body_size: int
    is_body_cut: bool = Field(description="only the first bytes are here; see `body_limit`")
    size: int = Field(description="as stored, in bytes")
    keys: list[str]
    tag: str
    message_group: str
    properties: dict[str, str]
    level: int
    born_at_ms: int
    stored_at_ms: int
    deliver_at_ms: int
    queue: int | None
    offset: int | None
    released_at_ms: int | None
    via: str | None
    rolls: int | None = Field(description="how often it was placed again in the wheel; null: not known")
    history: list[EventOut]
    groups: list[ShardPositionsOut]
    is_damaged: bool = Field(False, description="its bytes are damaged: only what the index knows is given")


class MeOut(BaseModel):
    now_ms: int
    user: str | None = Field(description="null: authentication is off")
    may: dict[str, bool] = Field(description="by verb: allowed on some topic at least")
