"""Measures how late messages are in their topic: a million at once, and a few hundred at rest.

`watcher.py` defines when a message counts as visible.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tidemill.broker.broker import Broker
from tidemill.cli.bench.watcher import Watcher
from tidemill.cli.bench.workload import BATCH_ROWS, TOPIC, Scale, table_due_at
from tidemill.core.config import BrokerSettings
from tidemill.core.model import Draft

# Short, so that far messages are due soon enough to wait for.
_LEAD_MS = 5_000
_NEAR_FROM_MS = 1_500
_FAR_FROM_MS = 6_500
_REST_SPAN_MS = 3_000
_PATIENCE_S = 60.0


def measure_burst(directory: Path, scale: Scale) -> dict[str, float]:
    """burst_1m_last_ms: everything due in one millisecond; how long after it the last is visible."""
    settings = BrokerSettings(lead_ms=_LEAD_MS)
    with Broker(directory / "burst", settings) as broker:
        watcher = Watcher(broker)
        # Time to send them, and for the wheel to hand them over a lead before they are due.
        due_ms = broker.clock.now_ms() + 2 * _LEAD_MS + scale.burst_count // 100
        for start in range(0, scale.burst_count, BATCH_ROWS):
            rows = min(BATCH_ROWS, scale.burst_count - start)
            broker.send_table(table_due_at(np.full(rows, due_ms, np.int64)), topic=TOPIC)
        watcher.wait_for(scale.burst_count, due_ms / 1000 + _PATIENCE_S)
    return {"burst_1m_last_ms": watcher.last_seen_s * 1000 - due_ms}


def measure_rest(directory: Path, scale: Scale) -> dict[str, float]:
    """rest_late_min_ms and rest_late_p99_ms over single messages, near and far, on an idle broker."""
    settings = BrokerSettings(lead_ms=_LEAD_MS)
    with Broker(directory / "rest", settings) as broker:
        now_ms = broker.clock.now_ms()
        spread = np.arange(scale.rest_count) * _REST_SPAN_MS // scale.rest_count
        due = np.concatenate((now_ms + _NEAR_FROM_MS + spread, now_ms + _FAR_FROM_MS + spread))
        broker.send([Draft(TOPIC, bytes(100), deliver_at_ms=at) for at in due.tolist()])
        watcher = Watcher(broker)
        watcher.wait_for(len(due), due[-1] / 1000 + _PATIENCE_S)
    late_ms = np.concatenate(watcher.late_ms)
    return {
        "rest_late_min_ms": float(late_ms.min()),
        "rest_late_p99_ms": float(np.percentile(late_ms, 99)),
    }
