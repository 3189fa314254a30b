"""A small broker on a simulated clock, which is checked in the end."""

from __future__ import annotations

import pytest

from small_broker import SmallBroker


@pytest.fixture
def small(tmp_path):
    small = SmallBroker(tmp_path / "data")
    yield small
    small.check()
    small.close()
