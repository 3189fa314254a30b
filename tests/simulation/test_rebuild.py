"""What may be deleted is rebuilt: the same state, the same answers, the same queue offsets.

The timer directory is disposable, and everything under `index/` is derived from the log, also after the
head of the log was cut.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulation.lives import Run
from tidemill.broker.broker import Broker

_SEEDS = range(6)


@pytest.mark.parametrize("name", ["timer", "index"])
@pytest.mark.parametrize("seed", _SEEDS)
def test_a_deleted_directory_comes_back_the_same(seed: int, name: str, tmp_path: Path) -> None:
    sim = Run(1_000_000 + seed, tmp_path)
    sim.crash_chance = 0.0
    sim.shape.retention_ms = 150_000  # so that the head is cut
    sim.shape.segment_bytes = 4_096
    broker = sim.open()
    for _ in range(70):
        sim.workload.act()
    sim.workload.world.advance(200_000)
    sim.check()
    before = _state_of(broker)
    if seed % 2:
        sim.close(broker)
    sim.disk = sim.disk.crash(power_cut=False)
    sim.delete(name)

    broker = sim.open()

    assert _state_of(broker) == before
    sim.check()
    sim.close(broker)
    sim.disk = sim.disk.crash(power_cut=False)
    sim.finish()
    assert sim.model.has_cut
    sim.disk.close()


def _state_of(broker: Broker) -> dict[str, Any]:
    """Everything that a user could tell apart, and the indexes it comes from."""
    store = broker.store
    indexes, ledger = store.indexes, store.ledger
    first = ledger.head_seq
    queues = {
        (topic.name, queue_id): [
            (row.offset, row.released_at_ms, row.via, row.message)
            for row in broker.views.read(topic.name, queue_id, 0, 1 << 30)
        ]
        for topic in indexes.topics
        for queue_id in range(topic.queue_count)
    }
    return {
        "head": (store.log.head, first),
        "ledger": ledger.range_states(first, ledger.next_seq).tolist(),
        "entries": indexes.entries.read(first, ledger.next_seq).tolist(),
        "topics": broker.views.topics(),
        "queues": queues,
        "ends": {queue: end for queue, end in store.queues.ends().items() if end},
        "due": broker.views.forecast(horizon_ms=9_000_000),
        "pending": broker.views.pending(limit=1 << 30),
        "halves": indexes.open_transactions,
        "base": indexes.base(),
        "groups": broker.views.groups(),
        "found": {
            key: broker.views.find(topic.name, key)
            for topic in indexes.topics
            for key in ("k1", "k2", "k3", "k4")
        },
    }
