"""Sizes of a broker's files and steps, where they are not those of its settings."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.release.releaser import RELEASE_ROWS_MAX
from tidemill.store.message_store import StoreSettings
from tidemill.timer.settings import StepLimits, TimerSettings


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of files and steps; tests make them small."""

    store: StoreSettings | None = None
    timer: TimerSettings | None = None
    limits: StepLimits | None = None
    release_rows_max: int = RELEASE_ROWS_MAX
