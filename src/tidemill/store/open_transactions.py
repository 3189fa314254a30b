"""First halves of transactions that wait for their ends: found by topic and message, and by their place.

Owns both ways to find one, because a producer names a half by its message and the frame that ends it by its
place. Ending one costs the same however many are open: it happens under the writer lock.

Invariant: every half is found both ways, and none at a place where it is no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpenHalf:
    """A transaction's first half that waits for its end."""

    place: int
    topic_id: int
    message_id: str
    stored_at_ms: int


def half_key(topic_id: int, message_id: str) -> str:
    return f"{topic_id}:{message_id}"


class OpenTransactions(dict[str, OpenHalf]):
    """Halves by `half_key`. Changed by `open`, `end` and `forget_topic` alone."""

    def __init__(self, halves: Mapping[str, OpenHalf] | None = None) -> None:
        super().__init__(halves or {})
        self._key_at = {half.place: key for key, half in self.items()}

    def open(self, half: OpenHalf) -> None:
        """Add a half, in the place of the one with the same message."""
        key = half_key(half.topic_id, half.message_id)
        if key in self:
            del self._key_at[self[key].place]
        self[key] = half
        self._key_at[half.place] = key

    def end(self, place: int) -> None:
        """The half at this place waits no more, if one does."""
        key = self._key_at.pop(place, None)
        if key is not None:
            del self[key]

    def forget_topic(self, topic_id: int) -> None:
        for half in list(self.values()):
            if half.topic_id == topic_id:
                self.end(half.place)
