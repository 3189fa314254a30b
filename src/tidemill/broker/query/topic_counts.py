"""How many timed and how many immediate messages each topic got; computed on request.

Nothing is counted for it: a timed message waits, was released or was cancelled, so the sum of the three is
how many there were, and all others that were stored went into their queues at once. As these counts are the
log's own, they survive a restart.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.store.message_store import MessageStore
from tidemill.store.topic_histograms import OTHER_TOPICS


@dataclass(slots=True)
class KindCounts:
    """Messages ever stored. `topic` None: the topics that have no name in the metrics, together."""

    topic: str | None
    timed: int = 0
    immediate: int = 0


def kind_counts(store: MessageStore) -> list[KindCounts]:
    """Of every topic that is named in the metrics, and of the others."""
    others, found = KindCounts(None), list[KindCounts]()
    with store.read():
        sums = [
            (topic_id, sent, released + cancelled + store.due_counts.pending(topic_id))
            for topic_id, (sent, released, cancelled) in sorted(store.totals.by_topic.items())
        ]
    for topic_id, sent, timed in sums:
        label = store.topic_names.label_of(topic_id)
        if label is None:
            continue  # deleted, and no longer shown
        counts = others
        if label != OTHER_TOPICS:
            counts = KindCounts(label)
            found.append(counts)
        counts.timed += timed
        counts.immediate += max(0, sent - timed)  # a damaged part of the log may have had its counts
    return [*found, others] if others.timed or others.immediate else found
