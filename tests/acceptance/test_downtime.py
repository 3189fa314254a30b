"""A broker that was down for weeks: a million overdue messages are worked off in order, groups strictly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tidemill.broker.broker import Broker
from tidemill.broker.query.table_views import Wanted
from tidemill.core.config import BrokerSettings
from tidemill.core.limits import DAY_MS
from tidemill.testing import ManualClock

pytestmark = pytest.mark.slow

START_MS = 1_800_000_000_000
COUNT = 1_000_000
GROUPED = 20_000
GROUPS = 50
AWAY_MS = 35 * DAY_MS
SETTINGS = BrokerSettings(retention_ms=400 * DAY_MS, queues_per_topic=4)


def _dues(count: int) -> np.ndarray:
    """Over three weeks, in no order, many of them equal."""
    return START_MS + DAY_MS + (np.arange(count, dtype=np.int64) * 7_919) % (21 * DAY_MS // 1_000) * 1_000


def _table(dues: np.ndarray, **columns: list[str]) -> pa.Table:
    bodies = pa.array(np.arange(len(dues)).astype("S7").tolist(), pa.binary())
    times = pa.array(dues).cast(pa.timestamp("ms", "UTC"))
    return pa.table({"body": bodies, "deliver_at": times, **columns})


def _fill(directory: Path) -> None:
    """Send, let the timer take a part of it, and go away."""
    clock = ManualClock(START_MS)
    with Broker(directory, SETTINGS, clock=clock, has_threads=False) as broker:
        broker.send_table(_table(_dues(COUNT)), topic="plain")
        groups = [f"g{number % GROUPS}" for number in range(GROUPED)]
        broker.send_table(_table(_dues(GROUPED), message_group=groups), topic="grouped")
        clock.advance(60_000)
        broker.run_due()  # absorbed into the wheel; some days of it roll
        assert broker.status().released == 0


def _history(broker: Broker, topic: str, *columns: str) -> pa.Table:
    wanted = Wanted("history", topic, columns=columns)
    return pa.Table.from_batches(broker.tables.read(wanted), wanted.schema())


def test_a_million_overdue_messages_are_worked_off_in_order(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    _fill(directory)
    clock = ManualClock(START_MS + AWAY_MS)
    with Broker(directory, SETTINGS, clock=clock, has_threads=False) as broker:
        rounds = 0
        while broker.status().pending:
            broker.run_due()
            clock.advance(1)
            rounds += 1
            assert rounds < 100, f"hangs with {broker.status().pending} left"
        assert broker.status().released == COUNT + GROUPED
        rows = _history(broker, "plain", "seq", "deliver_at", "queue", "offset")
        _check_order(rows, COUNT)
        rows = _history(broker, "grouped", "seq", "deliver_at", "queue", "offset")
        _check_order(rows, GROUPED)
        _check_groups(broker)
        assert broker.check(tmp_path / "scratch") == []


def _check_order(rows: pa.Table, count: int) -> None:
    """All are there once, and each queue has them by due time, then as they were sent."""
    assert rows.num_rows == count
    seq = rows["seq"].to_numpy()
    assert len(np.unique(seq)) == count
    due = rows["deliver_at"].cast(pa.int64()).to_numpy()
    queue, offset = rows["queue"].to_numpy(), rows["offset"].to_numpy()
    for number in np.unique(queue):
        mine = np.flatnonzero(queue == number)
        mine = mine[np.argsort(offset[mine])]
        order = np.lexsort((seq[mine], due[mine]))
        assert (order == np.arange(len(mine))).all(), f"queue {number} is out of order"


def _check_groups(broker: Broker) -> None:
    """Every group comes strictly by due time, as a consumer would see it."""
    last: dict[str, tuple[int, int]] = {}
    seen = 0
    for queue in range(SETTINGS.queues_per_topic):
        offset = 0
        while rows := broker.views.read("grouped", queue, offset, 4_096):
            for row in rows:
                message = row.message
                place = (message.deliver_at_ms, int(message.body))
                assert place > last.get(message.message_group, (0, -1)), message.message_group
                last[message.message_group] = place
            seen += len(rows)
            offset = rows[-1].offset + 1
    assert (seen, len(last)) == (GROUPED, GROUPS)
