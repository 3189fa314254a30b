from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.timer_harness import SMALL, STORES, ShardHarness
from tidemill.timer.settings import StoreKind


@pytest.fixture(params=STORES)
def store(request):
    """Each kind of timer store."""
    return request.param


@pytest.fixture
def shard(tmp_path, store):
    """One small shard, open at the start and consistent at the end of every test."""
    yield from _opened(tmp_path, store)


@pytest.fixture
def wheel_shard(tmp_path):
    """The same, for what only a wheel has."""
    yield from _opened(tmp_path, StoreKind.WHEEL)


@pytest.fixture
def rocks_shard(tmp_path):
    """The same, for what only RocksDB has."""
    yield from _opened(tmp_path, StoreKind.ROCKSDB)


def _opened(tmp_path, store):
    harness = ShardHarness(tmp_path / "timer", replace(SMALL, store=store)).open()
    yield harness
    harness.close()
    harness.check()
