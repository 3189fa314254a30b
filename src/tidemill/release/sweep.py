"""Which minutes must be swept: those over that have more pending messages than timer and releaser hold.

Pure. The due counts say how many messages of a minute are pending; a message that is due is pending only
while it is held for a reason (its topic is paused or limited, its group's order, a full disk), and then it is
in memory. What is counted and not in memory was forgotten: by a damaged timer, or by a set in memory that
lost it. A scan of the entries finds it.

Owns when a minute is scanned again: a scan that does not explain a surplus is not repeated until the surplus
grows or a pause has passed, which doubles each time. So a count that is wrong, or an entry that cannot be
read, costs a scan now and then and never one after the other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

Minutes = Mapping[int, int]  # minute -> messages

RETRY_MS_FIRST = 60_000
RETRY_MS_MAX = 3_600_000


def surplus(pending: Mapping[int, Minutes], held: Mapping[int, Minutes], spilled: Collection[int]) -> Minutes:
    """By minute, how many messages are pending and not held.

    `pending` and `held` are by topic. Compared topic by topic, so that one with too many held (cancelled
    since) hides nothing of another. A `spilled` topic has more waiting than is in memory, and finds it by
    itself.
    """
    found: dict[int, int] = {}
    for topic_id, minutes in pending.items():
        if topic_id in spilled:
            continue
        held_minutes = held.get(topic_id, {})
        for minute, count in minutes.items():
            if (left := count - held_minutes.get(minute, 0)) > 0:
                found[minute] = found.get(minute, 0) + left
    return found


@dataclass(slots=True)
class SweepRule:
    """Decides from one look to the next. With `needs_two_looks` a surplus counts when it lasts for two.

    That is for a broker with threads: a message may be stored and not yet handed over.
    """

    needs_two_looks: bool
    _seen: Minutes = field(default_factory=dict)
    _left: Minutes = field(default_factory=dict)  # what the last scan did not explain
    _has_scanned: bool = False  # since the last look
    _pause_ms: int = RETRY_MS_FIRST
    _retry_at_ms: int = 0

    def decide(self, found: Minutes, boot_ms: int) -> tuple[int, int] | None:
        """The minutes `[first, end)` to scan for this surplus, or None."""
        if self._has_scanned:
            self._note_left(found, boot_ms)
        lasting = _lowest(found, self._seen) if self.needs_two_looks else found
        self._seen, self._left = found, _lowest(self._left, found)
        wanted = [minute for minute, count in lasting.items() if count > self._left.get(minute, 0)]
        if not wanted and boot_ms >= self._retry_at_ms:
            wanted = list(lasting)
        if not wanted:
            return None
        self._has_scanned = True
        return min(wanted), max(wanted) + 1

    def _note_left(self, found: Minutes, boot_ms: int) -> None:
        self._has_scanned = False
        self._pause_ms = min(RETRY_MS_MAX, 2 * self._pause_ms) if found and self._left else RETRY_MS_FIRST
        self._left, self._retry_at_ms = found, boot_ms + self._pause_ms


def _lowest(one: Minutes, other: Minutes) -> Minutes:
    """The lower count of each minute that is in both."""
    return {minute: min(count, other[minute]) for minute, count in one.items() if minute in other}
