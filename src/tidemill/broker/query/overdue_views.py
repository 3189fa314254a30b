"""For how long the oldest overdue messages have been due, by what they wait for.

Reads and shapes; decides nothing. Computed on request, from what is kept anyway: the due counts
say to the minute which topics have overdue messages, backlogs and sets in memory say to the millisecond.
Where only the minute is known its end counts, so no age is exaggerated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.broker.query.wait_views import WaitView
from tidemill.core.limits import MINUTE_MS
from tidemill.release.hold_reasons import HoldReason
from tidemill.release.releaser import Releaser
from tidemill.store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class OverdueView:
    """The oldest overdue message that waits for one reason, or for none that is known."""

    waits_for: HoldReason | None
    topic: str  # empty: not known without reading entries
    due_ms: int


def overdue_views(
    store: MessageStore, releaser: Releaser, waits: Sequence[WaitView], now_ms: int
) -> list[OverdueView]:
    """One for each reason that something overdue waits for, the oldest first."""
    own = {wait.topic: wait.waits_for for wait in waits if wait.topic}
    shared = next((wait.waits_for for wait in waits if not wait.topic), None)
    exact, spilled = releaser.backlogs.earliest(), releaser.backlogs.spilled_ids()
    found: list[OverdueView] = []
    for topic_id, due_ms in _by_topic(store, exact, now_ms).items():
        topic = store.topics.by_id(topic_id)
        if topic is not None and due_ms <= now_ms:
            of_topic = HoldReason.RATE if topic_id in spilled else own.get(topic.name)
            reason = HoldReason.PAUSE if topic.is_paused else of_topic or shared
            found.append(OverdueView(reason, topic.name, due_ms))
    in_memory_ms = releaser.earliest_ms()
    if in_memory_ms is not None and in_memory_ms <= now_ms:
        found.append(OverdueView(shared, "", in_memory_ms))
    oldest: dict[HoldReason | None, OverdueView] = {}
    for view in sorted(found, key=lambda view: view.due_ms):
        oldest.setdefault(view.waits_for, view)
    return list(oldest.values())


def _by_topic(store: MessageStore, exact: dict[int, int], now_ms: int) -> dict[int, int]:
    """When the oldest of each topic fell due, in its backlog or in a minute that is past."""
    found = dict(exact)
    for topic_id, minutes in store.due_counts.before(now_ms // MINUTE_MS).items():
        end_ms = (min(minutes) + 1) * MINUTE_MS - 1
        found[topic_id] = min(found.get(topic_id, end_ms), end_ms)
    return found
