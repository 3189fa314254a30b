"""The model of the answer to `/v1/figures`: what the timer did, how long it took, and figures by topic."""

from __future__ import annotations

from pydantic import BaseModel, Field


class DurationsOut(BaseModel):
    name: str = Field(
        description="a stage (scan, due, absorb, hand-over, release), or the runner of the step"
    )
    count: int
    sum_ms: float
    counts: list[int] = Field(description="by bucket, see `bounds_ms`; the last has no bound")


class WorkOut(BaseModel):
    runner: str = Field(description="embedded or spark")
    absorbed: int
    handed_over: int
    rolled: int = Field(description="placed again, because the slot came before the time")
    already_due: int = Field(description="absorbed, and handed over in the same step")


class TopicFiguresOut(BaseModel):
    topic: str | None = Field(description="null: the topics beyond the number that is named, together")
    timed: int = Field(description="messages ever stored for later")
    immediate: int = Field(description="messages ever stored that went into their queue at once")
    delays: list[int] = Field(description="delays that were asked for, by bucket of `delay_bounds_ms`")
    lateness: list[int] = Field(description="releases by bucket of `lateness_bounds_ms`")


class FiguresOut(BaseModel):
    """What a process counts begins with it; `timed` and `immediate` survive a restart."""

    now_ms: int
    bounds_ms: list[float]
    stages: list[DurationsOut]
    steps: list[DurationsOut]
    work: list[WorkOut]
    delay_bounds_ms: list[int]
    lateness_bounds_ms: list[int]
    topics: list[TopicFiguresOut]
