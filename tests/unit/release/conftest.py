from __future__ import annotations

import pytest


@pytest.fixture
def small(make_small):
    return make_small(queues_per_topic=1)
