"""How much falls due: in each step of a window, by topic, for the forecast's chart; and in the next hour.

Owns the counting. Steps of whole minutes come from the due counts and cost the same whatever is pending;
finer ones are counted from the entries, a bounded part at a time, without holding up the log writer.

Invariant: `before`, the steps and `later` together are everything pending in the chosen topics. With fine
steps that is as exact as looks at several moments can be, and `before` ends with a whole minute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tidemill.broker.change.topic_admin import TopicAdmin
from tidemill.broker.query.wheel_picture import WheelPictures
from tidemill.core.arguments import require_whole
from tidemill.core.errors import RequestError
from tidemill.core.limits import MAX_DELAY_MS, MINUTE_MS
from tidemill.log.arrays import I64
from tidemill.store.due_counts import minute_columns
from tidemill.store.message_store import MessageStore

STEPS_MAX = 2_000
_FINE_STEP_MS_MIN = 1_000
_TOPICS_SHOWN = 6
_LATEST_MS = 1 << 52


@dataclass(frozen=True, slots=True)
class DueWindow:
    """Counts of `[from_ms, from_ms + steps * step_ms)`; the topics with most first, the rest as one."""

    now_ms: int
    from_ms: int
    step_ms: int
    due: I64
    by_topic: dict[str, I64]
    others: I64 | None  # the sum of the topics that are not named; None if all are
    before: int  # due before the window
    later: int  # due after it


class DueWindows:
    """Counts what falls due. Thread-safe."""

    def __init__(self, store: MessageStore, topics: TopicAdmin, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._topics = topics
        self._now_ms = now_ms

    def window(self, *, topic_name: str | None, from_ms: int, step_ms: int, steps: int) -> DueWindow:
        """Counts for `steps` steps from `from_ms` on."""
        require_whole("the number of steps", steps, 1, STEPS_MAX)
        require_whole("the step in ms", step_ms, _FINE_STEP_MS_MIN, MAX_DELAY_MS)
        require_whole("the start in ms", from_ms, 0, _LATEST_MS)
        if step_ms * steps > MAX_DELAY_MS:
            raise RequestError("the window is longer than any delay; take fewer or smaller steps")
        topic_id = self._topics.existing(topic_name).id if topic_name is not None else None
        with self._store.read():
            counted = self._store.due_counts.snapshot(topic_id)
        total = sum(sum(minutes.values()) for minutes in counted.values())
        if step_ms % MINUTE_MS == 0 and from_ms % MINUTE_MS == 0:
            by_id, before = _by_minutes(counted, from_ms, step_ms, steps)
        else:
            by_id = self._by_entries(topic_id, from_ms, step_ms, steps)
            before = _before(counted, from_ms)
        due = sum(by_id.values(), np.zeros(steps, np.int64))
        by_topic, others = self._largest(by_id)
        return DueWindow(
            self._now_ms(),
            from_ms,
            step_ms,
            due,
            by_topic,
            others,
            before,
            max(0, total - before - int(due.sum())),
        )

    def _by_entries(self, topic_id: int | None, from_ms: int, step_ms: int, steps: int) -> dict[int, I64]:
        by_id: dict[int, I64] = {}
        for _, rows in self._store.scan_pending(topic_id, from_ms, from_ms + step_ms * steps):
            which = (rows["deliver_at_ms"] - from_ms) // step_ms
            for one in np.unique(rows["topic_id"]).tolist():
                counts = np.bincount(which[rows["topic_id"] == one], minlength=steps)
                by_id[one] = by_id.get(one, 0) + counts
        return by_id

    def _largest(self, by_id: dict[int, I64]) -> tuple[dict[str, I64], I64 | None]:
        names = {topic.id: topic.name for topic in list(self._store.topics)}
        counts = {names[one]: part for one, part in by_id.items() if one in names and part.any()}
        ordered = sorted(counts, key=lambda name: (-int(counts[name].sum()), name))
        shown = ordered if len(ordered) <= _TOPICS_SHOWN else ordered[: _TOPICS_SHOWN - 1]
        rest = [counts[name] for name in ordered[len(shown) :]]
        others: I64 | None = np.sum(rest, axis=0) if rest else None
        return {name: counts[name] for name in shown}, others


def _by_minutes(
    counted: dict[int, dict[int, int]], from_ms: int, step_ms: int, steps: int
) -> tuple[dict[int, I64], int]:
    by_id: dict[int, I64] = {}
    before = 0
    for topic_id, counts_by_minute in counted.items():
        minutes, counts = minute_columns(counts_by_minute)
        which = (minutes * MINUTE_MS - from_ms) // step_ms
        inside = (which >= 0) & (which < steps)
        # Weighted counts come as floats, which are exact far beyond any number of messages.
        weighted = np.bincount(which[inside], counts[inside], minlength=steps)
        by_id[topic_id] = weighted.astype(np.int64)
        before += int(counts[which < 0].sum())
    return by_id, before


def _before(counted: dict[int, dict[int, int]], from_ms: int) -> int:
    """How many fall due before the minute of `from_ms`."""
    first = from_ms // MINUTE_MS
    return sum(count for minutes in counted.values() for minute, count in minutes.items() if minute < first)


HORIZON_MS = 60 * MINUTE_MS
# Slots are grouped by how many messages they hold: from each number up to below the next.
FILLS = (0, 1, 10, 100, 1_000, 10_000, 100_000)


@dataclass(frozen=True, slots=True)
class LoadAhead:
    """`slots[i]` is how many slots of the next hour hold at least `FILLS[i]` and fewer than the next."""

    peak: int  # messages that fall due in the fullest minute
    peak_at_ms: int | None
    fullest: int  # messages in the fullest slot
    slots: list[int]  # empty where the timer store has none


def load_ahead(store: MessageStore, wheel: WheelPictures, now_ms: int) -> LoadAhead:
    """The load of the hour that begins with the minute under way."""
    first = now_ms // MINUTE_MS
    with store.read():
        minutes = store.due_counts.minutes(None, first, first + HORIZON_MS // MINUTE_MS)
    fullest_minute = max(minutes, key=minutes.__getitem__, default=None)
    counts = wheel.slots_until(now_ms + HORIZON_MS)
    places = np.searchsorted(FILLS, counts, "right") - 1
    return LoadAhead(
        peak=0 if fullest_minute is None else minutes[fullest_minute],
        peak_at_ms=None if fullest_minute is None else fullest_minute * MINUTE_MS,
        fullest=int(counts.max(initial=0)),
        slots=np.bincount(places, minlength=len(FILLS)).tolist() if len(counts) else [],
    )
