"""Messages whose level was above the highest: counted by topic, and logged once for each topic.

The result of such a message has a note, but not every answer can carry one: gRPC's has none, nor has that
to the commit of a transaction. Owns the counts, which begin with the process. Thread-safe.
"""

from __future__ import annotations

import logging
from collections import Counter
from threading import Lock

logger = logging.getLogger(__name__)


class ClampedLevels:
    """How many messages of each topic were stored with the highest level in place of their own."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = Lock()

    def counts(self) -> dict[str, int]:
        """By name of the topic; one without any is missing."""
        with self._lock:
            return dict(self._counts)

    def add(self, topic: str, note: str, count: int = 1) -> None:
        """Count messages that were stored; `note` says what was asked for and what was used."""
        with self._lock:
            is_first = topic not in self._counts
            self._counts[topic] += count
        if is_first:
            logger.warning(
                "topic %r: %s; send a level of the table, or serve with a longer one (--levels). From now on "
                "such messages of this topic are only counted (tidemill_levels_clamped_total)",
                topic,
                note,
            )
