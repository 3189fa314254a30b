"""Views of levels: what waits on each, when the next is due, how far it lags behind the clock.

Reads and shapes; decides nothing. A queue belongs to a delay: it is shown under the (lowest) level that
means that delay now, and under level 0 where none does any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.core.config import BrokerSettings
from tidemill.store.level_queues import DelayView
from tidemill.store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class LevelView:
    level: int  # 0: of a table used before
    delay_ms: int
    waiting: int
    next_due_ms: int | None
    lag_ms: int  # how long the earliest of what waits has been due


def level_views(store: MessageStore, settings: BrokerSettings, now_ms: int) -> list[LevelView]:
    """Every level of the table, then delays of an earlier table that something still waits with."""
    with store.read():
        found = {view.delay_ms: view for view in store.levels.view()}
    views = []
    for level, delay_ms in enumerate(settings.level_delays_ms, 1):
        views.append(_view(level, delay_ms, found.pop(delay_ms, None), now_ms))
    return views + [_view(0, delay_ms, delay, now_ms) for delay_ms, delay in found.items()]


def _view(level: int, delay_ms: int, delay: DelayView | None, now_ms: int) -> LevelView:
    if delay is None or delay.next_due_ms is None:
        return LevelView(level, delay_ms, 0, None, 0)
    lag_ms = max(0, now_ms - delay.next_due_ms)
    return LevelView(level, delay_ms, delay.waiting, delay.next_due_ms, lag_ms)
