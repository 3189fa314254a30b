"""What messages that are due wait for: the reasons, named, for those who look on.

Owns the names; they are a contract (status, metrics). The releaser says which of them hold at a moment.
Nothing is skipped for any of them: what waits goes as soon as its reason is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class HoldReason(StrEnum):
    PAUSE = "pause"  # its topic is paused
    RATE = "rate"  # its topic may release only so many a second
    ORDER = "order"  # a FIFO message: the timer has not handed over all that may come before it
    COMMIT = "commit"  # as many release records as may be under way are, and none is safe yet
    DISK_SPACE = "disk"  # a release record finds no space on the disk; retried, ever more rarely
    SWEEP = "sweep"  # overdue, and neither the timer nor the releaser has it: a scan of the entries finds it
    HOLD = "hold"  # releases are held for the whole broker, until an operator resumes them
    ABSORB = "absorb"  # absorbing is held, and the timer had not taken it in; it goes after the resume
    CLOCK = "clock"  # the wall clock leapt forward: held for ten seconds, it may be wrong


@dataclass(frozen=True, slots=True)
class ReleaseWait:
    """Messages held by one reason; `topic_id` where it is one topic's own."""

    waits_for: HoldReason
    messages: int
    topic_id: int | None = None
