from __future__ import annotations

import pytest

from small_broker import SmallBroker


@pytest.fixture
def small(tmp_path):
    """An empty small broker over the store under test, checked against its own log at the end."""
    small = SmallBroker(tmp_path / "data")
    yield small
    small.check()
    small.close()
