from __future__ import annotations

import pytest

from small_broker import SmallBroker


@pytest.fixture
def make_small(tmp_path):
    """Makes small brokers around the releaser; all are checked at the end."""
    made: list[SmallBroker] = []

    def make(**settings) -> SmallBroker:
        made.append(SmallBroker(tmp_path / f"data-{len(made)}", **settings))
        return made[-1]

    yield make
    for small in made:
        small.check()
        small.close()


@pytest.fixture
def small(make_small):
    return make_small(queues_per_topic=1)
