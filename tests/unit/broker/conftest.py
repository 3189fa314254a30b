from __future__ import annotations

import pytest

from small_broker import SmallBroker


@pytest.fixture
def small(tmp_path):
    """An empty small broker, checked against its own log when the test is over."""
    small = SmallBroker(tmp_path / "data")
    yield small
    small.check()
    small.close()


@pytest.fixture
def make_small(tmp_path):
    """Makes small brokers with other settings; all are checked at the end."""
    made: list[SmallBroker] = []

    def make(**settings) -> SmallBroker:
        made.append(SmallBroker(tmp_path / f"data-{len(made)}", **settings))
        return made[-1]

    yield make
    for small in made:
        small.check()
        small.close()
