"""The models of the answers to queries: messages, forecast, status, charts, figures.

Owns names and types, like `http_models.py`. A model is filled from the broker's value by the names of its
fields (`Out.of`). Charts take columns of numbers as they are.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tidemill.server.http.http_models import AS_LIST, AS_NAME, AS_TEXT, AS_TIME, Out

Numbers = Annotated[list[int], AS_LIST]


_WAITS_FOR = "why it is not released though due, as in `waits` of `/v1/status`; null: not due, or not known"


class PendingOut(Out):
    message_id: str = Field(validation_alias="id")
    topic: str
    keys: list[str]
    tag: str
    stored_at_ms: int
    deliver_at_ms: int
    size: int = Field(description="bytes in the log: body, texts, and what the broker keeps with them")
    handle: Annotated[str, AS_TEXT]
    is_damaged: bool = Field(
        False, description="its bytes are damaged: id, keys and tag are unknown; the handle cancels it"
    )
    body_bytes: int | None = Field(None, description="of the body alone; null where the bytes are damaged")
    waits_for: str | None = Field(None, description=_WAITS_FOR)


class PendingListOut(Out):
    now_ms: int
    pending: list[PendingOut]


class MinuteOut(Out):
    from_ms: int
    due: int


class ForecastOut(Out):
    now_ms: int
    minutes: list[MinuteOut]


class FoundOut(Out):
    message_id: str = Field(validation_alias="id")
    body: str | None
    body_base64: str | None
    keys: list[str]
    tag: str
    properties: dict[str, str] = Field(description="as the sender gave them")
    stored_at_ms: int
    deliver_at_ms: Annotated[int | None, AS_TIME]
    state: str = Field(description="pending, released or cancelled")
    queue: int | None = Field(None, validation_alias="queue_id")
    offset: int | None = None
    released_at_ms: int | None = None
    is_damaged: bool = Field(False, description="its bytes are damaged: only what the index knows is given")
    broker_properties: dict[str, str] = Field({}, description="what the broker adds (a retry, a dead letter)")


class FoundListOut(Out):
    messages: list[FoundOut]


class DamageOut(Out):
    """What is known to be damaged in the commit log since the start; see `/v1/damaged`."""

    frames: int = 0
    messages: int = Field(0, description="in them, waiting or in a queue; they are not delivered")
    pending: int = Field(0, description="of those, how many wait; retention keeps the log from the first on")


class DamagedOut(Out):
    """A message whose bytes in the commit log are damaged, as far as it is known without them."""

    topic: str
    state: str = Field(description="pending, released, sent (at once), or open (a transaction)")
    queue: int
    offset: int | None = Field(description="in its queue; null: in none")
    seq: int | None = Field(description="null: not timed")
    message_id: str = Field(description="empty where it is not known")
    id_hash: str = Field(description="hash of topic and id, in hexadecimal; empty where it is not known")
    handle: Annotated[str | None, AS_TEXT] = Field(description="cancels it, if it waits")
    deliver_at_ms: int | None
    stored_at_ms: int | None
    released_at_ms: int | None
    size: int | None = Field(description="null where it is not known")
    file: str
    position: int = Field(description="byte of the file at which its frame begins")
    log_offset: int
    row: int = Field(description="which message of its frame it is, from 0")


class DamagedListOut(DamageOut):
    damaged: list[DamagedOut]


class LatenessOut(Out):
    count: int
    p50: float = Field(validation_alias="p50_ms")
    p99: float = Field(validation_alias="p99_ms")
    max: float = Field(validation_alias="max_ms")


class PipelineOut(Out):
    runner: str
    store: str
    state: str
    lag_ms: int
    takeovers: int
    since_ms: int
    problem: str


class DiskOut(Out):
    log_bytes: int
    free_bytes: int
    is_full: bool = Field(description="sends are refused because the disk is full; releases go on")
    is_low: bool = Field(False, description="nearly full: free space before sends are refused")
    size_bytes: int = Field(0, description="of the whole disk", validation_alias="total_bytes")
    warn_below_bytes: int = Field(0, description="with less than this free the disk is nearly full")
    refuse_below_bytes: int = Field(
        0, description="with less than this free the log cannot allocate a segment"
    )


class LevelOut(Out):
    level: int = Field(description="0: a delay of an earlier table that something still waits with")
    delay_ms: int
    waiting: int
    next_due_ms: int | None
    lag_ms: int = Field(description="how long the earliest waiting message has been due")


class WaitOut(Out):
    """Why messages that are due are not in their topic yet."""

    waits_for: str = Field(description="pause, rate, order, commit, disk, sweep, hold, absorb or clock")
    topic: str = Field(description="the topic concerned; empty: the whole broker")
    messages: int


class OverdueOut(Out):
    """Of the overdue messages that wait for one reason, the one that has been due longest."""

    waits_for: str = Field(description="as in `waits`; empty: no reason is known")
    topic: str = Field(description="its topic; empty where that is not known, or may not be looked at")
    due_ms: int = Field(description="when it fell due; where only the minute is known, the end of that")


class HoldsOut(Out):
    """What an operator holds for the whole broker, and since when (Unix ms); null: it is not held."""

    releases_since_ms: int | None = Field(description="nothing timed is put into its topic")
    absorbing_since_ms: int | None = Field(description="the timer takes in no new entries")


class HealthOut(Out):
    state: str = Field(
        description="ok, failing (a service fails again and again) or failed (it takes no more)"
    )
    reason: str = Field(description="which part, and what is wrong; empty while all is well")
    last_fault: str = Field(description="why the broker was opened again; empty if it was not")


class StatusOut(Out):
    broker: str
    now_ms: int
    is_clock_simulated: bool
    pending: int
    sent: int
    released: int
    cancelled: int
    swept: int = Field(description="overdue and missing in the timer: found by a sweep and released")
    near: int
    ready: int
    backlog: int
    open_transactions: int = Field(description="begun, and neither committed nor rolled back")
    lateness_ms: LatenessOut
    pipeline: PipelineOut
    clock_leaps: int
    disk: DiskOut
    damage: DamageOut
    levels: list[LevelOut]
    holds: HoldsOut
    waits: list[WaitOut]
    overdue: list[OverdueOut] = Field(description="one for each reason that something overdue waits for")
    health: HealthOut


class DueTopicOut(Out):
    topic: str | None = Field(description="null: all the topics that are not named")
    due: Numbers


class DueWindowOut(Out):
    now_ms: int
    from_ms: int
    step_ms: int
    due: Numbers = Field(description="how many fall due in each step")
    topics: list[DueTopicOut] = Field(description="the same by topic, the largest first")
    before: int = Field(description="due before the window")
    later: int = Field(description="due after it")


class PendingCountOut(Out):
    now_ms: int
    messages: int


class DialOut(Out):
    turn_ms: int
    sector_ms: int
    loads: Numbers = Field(description="by sector of the turn, beginning at multiples of `turn_ms`")


class ShardOut(Out):
    drained_to_ms: int = Field(description="everything due before this was handed to the releaser")
    absorbed_seq: int
    step: int


class WheelOut(Out):
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


class MetricsHistoryOut(Out):
    """Running totals: the difference of two samples is what happened between them."""

    now_ms: int
    every_ms: int
    at_ms: Numbers
    sent: Numbers
    released: Numbers
    cancelled: Numbers
    pending: Numbers
    bounds_ms: list[float] = Field(description="upper bounds of the buckets of lateness; the last has none")
    lateness: Annotated[list[list[int]], AS_LIST] = Field(description="for each sample: releases by bucket")


class StepOut(Out):
    at_ms: int
    runner: str
    steps: int
    rows: int
    drained_to_ms: int


class StepListOut(Out):
    now_ms: int
    steps: list[StepOut] = Field(description="newest first")


class EventOut(Out):
    what: str = Field(description="stored, rescheduled, kept (moved on by retention), released, cancelled")
    at_ms: int | None = Field(description="null: no longer known")
    deliver_at_ms: int | None = Field(description="the due time that it set; null: it set none")


class GroupPositionOut(Out):
    group: str
    standing: str = Field(description="waiting, taken, settled")
    attempt: int


class MessageOut(Out):
    topic: str
    message_id: str = Field(validation_alias="id")
    handle: Annotated[str, AS_TEXT]
    state: str = Field(description="pending, released, cancelled")
    body: str | None = Field(description="null where it is not text; then `body_base64`")
    body_base64: str | None
    body_size: int
    is_body_cut: bool = Field(description="only the first bytes are here; see `body_limit`")
    size: int = Field(description="as stored, in bytes")
    keys: list[str]
    tag: str
    message_group: str
    properties: dict[str, str] = Field(description="as the sender gave them")
    broker_properties: dict[str, str] = Field({}, description="what the broker adds (a retry, a dead letter)")
    level: int
    born_at_ms: int
    stored_at_ms: int
    deliver_at_ms: int
    queue: int | None = Field(validation_alias="queue_id")
    offset: int | None
    released_at_ms: int | None
    via: Annotated[str | None, AS_NAME]
    rolls: int | None = Field(description="how often it was placed again in the wheel; null: not known")
    waits_for: str | None = Field(None, description=_WAITS_FOR)
    history: list[EventOut]
    groups: list[GroupPositionOut]
    is_damaged: bool = Field(False, description="its bytes are damaged: only what the index knows is given")


class MeOut(Out):
    now_ms: int
    user: str | None = Field(description="null: authentication is off")
    may: dict[str, bool] = Field(description="by verb: allowed on some topic at least")


class DurationsOut(Out):
    name: str = Field(
        description="a stage (scan, due, absorb, hand-over, release), or the runner of the step"
    )
    count: int
    sum_ms: float
    counts: list[int] = Field(description="by bucket, see `bounds_ms`; the last has no bound")


class WorkOut(Out):
    runner: Annotated[str, AS_NAME] = Field(description="embedded or spark")
    absorbed: int
    handed_over: int
    rolled: int = Field(description="placed again, because the slot came before the time")
    already_due: int = Field(description="absorbed, and handed over in the same step")


class TopicFiguresOut(Out):
    topic: str | None = Field(description="null: the topics beyond the number that is named, together")
    timed: int = Field(description="messages ever stored for later")
    immediate: int = Field(description="messages ever stored that went into their queue at once")
    delays: list[int] = Field(description="delays that were asked for, by bucket of `delay_bounds_ms`")
    lateness: list[int] = Field(description="releases by bucket of `lateness_bounds_ms`")


class FiguresOut(Out):
    """What a process counts begins with it; `timed` and `immediate` survive a restart."""

    now_ms: int
    bounds_ms: list[float]
    stages: list[DurationsOut]
    steps: list[DurationsOut]
    work: list[WorkOut]
    delay_bounds_ms: list[int]
    lateness_bounds_ms: list[int]
    topics: list[TopicFiguresOut]
