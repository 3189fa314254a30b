"""Histograms by topic count every value in its bucket, and name a bounded number of topics."""

from __future__ import annotations

import numpy as np
import pytest

from tidemill.core.model import TopicType
from tidemill.store.topic_histograms import DELAY_BOUNDS_MS, TOPICS_NAMED_MAX, TopicHistogram, TopicNames
from tidemill.store.topics import Topic, TopicTable


def _topics(count: int) -> TopicTable:
    topics = TopicTable()
    for number in range(1, count + 1):
        topics.put(Topic(number, f"t{number}", TopicType.MIXED, 1))
    return topics


def _expected(values: np.ndarray) -> list[int]:
    counts = [0] * (len(DELAY_BOUNDS_MS) + 1)
    for value in values.tolist():
        at = next((i for i, bound in enumerate(DELAY_BOUNDS_MS) if value <= bound), len(DELAY_BOUNDS_MS))
        counts[at] += 1
    return counts


@pytest.mark.parametrize("topic_count", [1, 3, 90])
@pytest.mark.parametrize("batch_rows", [1, 7, 5_000])
def test_every_value_is_in_its_bucket(topic_count: int, batch_rows: int) -> None:
    topics = _topics(topic_count)
    histogram = TopicHistogram(TopicNames(lambda: topics), DELAY_BOUNDS_MS)
    chance = np.random.default_rng(topic_count * batch_rows)
    values = np.exp(chance.uniform(0, 28, 10_000)).astype(np.int64)
    values[: len(DELAY_BOUNDS_MS)] = DELAY_BOUNDS_MS
    topic_ids = chance.integers(1, topic_count + 1, len(values)).astype(np.uint32)
    for start in range(0, len(values), batch_rows):
        histogram.note(topic_ids[start : start + batch_rows], values[start : start + batch_rows])
    found = histogram.by_topic()
    assert sum(sum(one.counts) for one in found) == len(values)
    for one in found:
        assert one.topic is not None
        own = values[topic_ids == topics.named(one.topic).id]
        assert one.counts == _expected(own)
        assert one.sum_ms == own.sum()


def test_a_bounded_number_of_topics_is_named() -> None:
    topics = _topics(TOPICS_NAMED_MAX + 50)
    histogram = TopicHistogram(TopicNames(lambda: topics), DELAY_BOUNDS_MS)
    ids = np.arange(1, len(topics) + 1, dtype=np.uint32)
    histogram.note(ids, np.full(len(ids), 5_000))
    found = {one.topic: sum(one.counts) for one in histogram.by_topic()}
    assert len(found) == TOPICS_NAMED_MAX + 1
    assert found[None] == 50


def test_what_was_summed_is_never_named_later_and_a_gone_topic_is_forgotten() -> None:
    topics = _topics(3)
    histogram = TopicHistogram(TopicNames(lambda: topics, named_max=2), DELAY_BOUNDS_MS)
    ids = np.array([1, 2, 3, 3])
    histogram.note(ids, np.full(4, 1_000))
    assert {one.topic: sum(one.counts) for one in histogram.by_topic()} == {"t1": 1, "t2": 1, None: 2}
    topics.remove(1)
    topics.put(Topic(4, "t4", TopicType.MIXED, 1))
    histogram.note(np.array([3, 4, 1]), np.full(3, 1_000))
    assert {one.topic: sum(one.counts) for one in histogram.by_topic()} == {"t2": 1, "t4": 1, None: 4}
