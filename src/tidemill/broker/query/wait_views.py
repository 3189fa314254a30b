"""Views of what releases wait for: topics by name, what an operator holds, a leap of the clock.

Reads and shapes; decides nothing. While releases are held, every message that is due waits for that, but
for those of a paused topic and those that the timer may not absorb: a resume of releases does not free them.

How long the oldest overdue messages have been due comes from what is kept anyway: the due counts say to the
minute which topics have overdue messages, backlogs and sets in memory say to the millisecond. Where only the
minute is known its end counts, so no age is exaggerated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidemill.broker.control.timer_controller import TimerController
from tidemill.broker.control.unabsorbed import due_unabsorbed
from tidemill.core.limits import MINUTE_MS
from tidemill.release.backlogs import ReleaseWait, WaitReason
from tidemill.release.clock_guard import ClockGuard
from tidemill.release.releaser import Releaser
from tidemill.store.formats.entry_format import FLAG_FIFO, FLAG_LEVEL, FLAG_NEAR
from tidemill.store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class WaitView:
    waits_for: WaitReason
    topic: str  # whose own affair it is; empty: the whole broker's
    messages: int


def wait_views(
    store: MessageStore,
    releaser: Releaser,
    timer_controller: TimerController,
    guard: ClockGuard,
    now_ms: int,
    boot_ms: int,
) -> list[WaitView]:
    """Every reason that holds just now."""
    topics, views = store.topics, []
    unabsorbed: Counter[int] = Counter()
    if timer_controller.holds.holds_absorbing:
        unabsorbed = due_unabsorbed(store, timer_controller.absorbed_ends, now_ms)
    if timer_controller.holds.holds_releases:
        waits = _waits_under_hold(store, releaser, timer_controller, now_ms)
    else:
        waits = releaser.waits(now_ms)
    for wait in waits:
        topic = None if wait.topic_id is None else topics.by_id(wait.topic_id)
        views.append(WaitView(wait.waits_for, topic.name if topic else "", wait.messages))
    if count := unabsorbed.total():
        views.append(WaitView(WaitReason.ABSORB, "", count))
    if guard.is_holding(boot_ms):
        views.append(WaitView(WaitReason.CLOCK, "", releaser.near_due_count(now_ms)))
    return sorted(views, key=lambda view: (view.waits_for, view.topic))


def _waits_under_hold(
    store: MessageStore, releaser: Releaser, timer_controller: TimerController, now_ms: int
) -> list[ReleaseWait]:
    """The messages that are due while releases are held."""
    found, held = list[ReleaseWait](), 0
    due = _due(store, releaser, timer_controller, now_ms)
    for topic_id, count in due.items():
        topic = store.topics.by_id(topic_id)
        if count > 0 and topic is not None:
            if topic.is_paused:
                found.append(ReleaseWait(WaitReason.PAUSE, count, topic_id))
            else:
                held += count
    return [*found, ReleaseWait(WaitReason.HOLD, held)] if held else found


def _due(
    store: MessageStore, releaser: Releaser, timer_controller: TimerController, now_ms: int
) -> Counter[int]:
    """Pending messages that are due and that the timer may absorb or has, by topic id.

    The due counts know the minutes that are over; of the minute that runs, what the releaser has is counted.
    """
    minute = now_ms // MINUTE_MS
    before = store.due_counts.before(minute)
    found = Counter({topic_id: sum(minutes.values()) for topic_id, minutes in before.items()})
    if timer_controller.holds.holds_absorbing:
        found.subtract(due_unabsorbed(store, timer_controller.absorbed_ends, minute * MINUTE_MS - 1))
    seqs = np.unique(releaser.due_seqs(minute * MINUTE_MS, now_ms))
    with store.read():
        seqs = seqs[store.ledger.pending_mask(seqs)]
        topic_ids = store.entries.take(seqs)["topic_id"]
    ids, counts = np.unique(topic_ids, return_counts=True)
    found.update(dict(zip(ids.tolist(), counts.tolist(), strict=True)))
    return found


# What one message may wait for that is not its topic's own affair: the first of them that applies.
_SHARED = (
    WaitReason.ABSORB,
    WaitReason.HOLD,
    WaitReason.CLOCK,
    WaitReason.DISK_SPACE,
    WaitReason.ORDER,
    WaitReason.COMMIT,
    WaitReason.SWEEP,
)


def reason_of(waits: Sequence[WaitView], topic: str, flags: int, *, is_absorbed: bool) -> WaitReason | None:
    """What a pending message that is due waits for, of all that holds just now; None: no reason is known.

    `flags` are those of its entry; `is_absorbed` counts while absorbing is held.
    """
    own = next((wait.waits_for for wait in waits if wait.topic == topic), None)
    shared = {wait.waits_for for wait in waits if not wait.topic}
    if is_absorbed or flags & (FLAG_NEAR | FLAG_LEVEL):
        shared.discard(WaitReason.ABSORB)
    if not flags & FLAG_FIFO:
        shared.discard(WaitReason.ORDER)
    return own or next((reason for reason in _SHARED if reason in shared), None)


@dataclass(frozen=True, slots=True)
class OverdueView:
    """Of the messages that wait for one reason, or for none that is known, that which is due longest."""

    waits_for: WaitReason | None
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
            of_topic = WaitReason.RATE if topic_id in spilled else own.get(topic.name)
            reason = WaitReason.PAUSE if topic.is_paused else of_topic or shared
            found.append(OverdueView(reason, topic.name, due_ms))
    in_memory_ms = releaser.earliest_ms()
    if in_memory_ms is not None and in_memory_ms <= now_ms:
        found.append(OverdueView(shared, "", in_memory_ms))
    oldest: dict[WaitReason | None, OverdueView] = {}
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
