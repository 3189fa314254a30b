"""The shape of the answer to `/v1/status`."""

from __future__ import annotations

from pydantic import BaseModel, Field

from tidemill.server.http.damage_models import DamageOut


class LatenessOut(BaseModel):
    count: int
    p50: float
    p99: float
    max: float


class PipelineOut(BaseModel):
    runner: str
    store: str
    state: str
    lag_ms: int
    takeovers: int
    since_ms: int
    problem: str


class DiskOut(BaseModel):
    log_bytes: int
    free_bytes: int
    is_full: bool = Field(description="sends are refused because the disk is full; releases go on")
    is_low: bool = Field(False, description="nearly full: free space before sends are refused")
    size_bytes: int = Field(0, description="of the whole disk")
    warn_below_bytes: int = Field(0, description="with less than this free the disk is nearly full")
    refuse_below_bytes: int = Field(
        0, description="with less than this free the log cannot allocate a segment"
    )


class LevelOut(BaseModel):
    level: int = Field(description="0: a delay of an earlier table that something still waits with")
    delay_ms: int
    waiting: int
    next_due_ms: int | None
    lag_ms: int = Field(description="how long the earliest waiting message has been due")


class WaitOut(BaseModel):
    """Why messages that are due are not in their topic yet."""

    waits_for: str = Field(description="pause, rate, order, commit, disk, sweep, hold, absorb or clock")
    topic: str = Field(description="the topic concerned; empty: the whole broker")
    messages: int


class OverdueOut(BaseModel):
    """The oldest overdue message that waits for one reason."""

    waits_for: str = Field(description="as in `waits`; empty: no reason is known")
    topic: str = Field(description="its topic; empty where that is not known, or may not be looked at")
    due_ms: int = Field(description="when it fell due; where only the minute is known, the end of that")


class HoldsOut(BaseModel):
    """What an operator holds for the whole broker, and since when (Unix ms); null: it is not held."""

    releases_since_ms: int | None = Field(description="nothing timed is put into its topic")
    absorbing_since_ms: int | None = Field(description="the timer takes in no new entries")


class HealthOut(BaseModel):
    state: str = Field(
        description="ok, failing (a service fails again and again) or failed (it takes no more)"
    )
    reason: str = Field(description="which part, and what is wrong; empty while all is well")
    last_fault: str = Field(description="why the broker was opened again; empty if it was not")


class StatusOut(BaseModel):
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
