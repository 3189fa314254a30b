"""What releases wait for, as people look at it: topics by name, and the hold after a leap of the clock.

Reads and shapes; decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.release.clock_guard import ClockGuard
from tidemill.release.releaser import Releaser
from tidemill.release.waits import WaitsFor
from tidemill.store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class WaitView:
    waits_for: WaitsFor
    topic: str  # whose own affair it is; empty: the whole broker's
    messages: int


def wait_views(
    store: MessageStore, releaser: Releaser, guard: ClockGuard, now_ms: int, boot_ms: int
) -> list[WaitView]:
    """Every reason that holds just now."""
    views = []
    for wait in releaser.waits(now_ms):
        topic = None if wait.topic_id is None else store.indexes.topics.by_id(wait.topic_id)
        views.append(WaitView(wait.waits_for, topic.name if topic else "", wait.messages))
    if guard.is_holding(boot_ms):
        views.append(WaitView(WaitsFor.CLOCK, "", releaser.near_due_count(now_ms)))
    return sorted(views, key=lambda view: (view.waits_for, view.topic))
