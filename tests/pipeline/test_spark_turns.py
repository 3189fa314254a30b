"""Spark turns the wheel: the same messages, on time, through takeovers. Real Spark, real processes.

One session serves all: starting Spark is what costs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.spark_broker import open_broker, wait_for, wait_for_spark
from tidemill.broker.broker import Broker
from tidemill.core.config import BrokerSettings
from tidemill.core.model import Draft, Via
from tidemill.server.pipeline_command import why_not_spark
from tidemill.timer.shard_lock import process_started

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not_spark()), reason=f"Spark cannot run here: {why_not_spark()}"),
]

LEAD_MS = 8_000
LATE_MS_MAX = 250  # generous: the machine may be busy; the bench says what is usual


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("spark") / "data"
    with open_broker(directory, BrokerSettings(lead_ms=LEAD_MS)) as opened:
        wait_for_spark(opened)
        yield opened
        findings = opened.check(tmp_path_factory.mktemp("scratch"))
    assert findings == []


def _send_far(broker: Broker, topic: str, count: int) -> list[str]:
    """Messages due a little after the lead, 10 ms apart, so that they go through the wheel."""
    first_ms = broker.clock.now_ms() + LEAD_MS + 2_000
    drafts = [Draft(topic, str(i).encode(), deliver_at_ms=first_ms + 10 * i) for i in range(count)]
    return [receipt.id for receipt in broker.send(drafts)]


def _receive_all(broker: Broker, topic: str, ids: list[str]) -> dict[str, Via]:
    """Every message, once, never early, hardly late; says which way each came."""
    via: dict[str, Via] = {}

    def look() -> bool:
        for delivery in broker.receive(topic, "g", count=256):
            assert delivery.message.id not in via, "came twice"
            assert delivery.released_at_ms >= delivery.message.deliver_at_ms, "came early"
            assert delivery.released_at_ms - delivery.message.deliver_at_ms < LATE_MS_MAX, "came late"
            via[delivery.message.id] = delivery.via
            broker.ack([delivery.receipt])
        return len(via) >= len(ids)

    wait_for(f"all messages of {topic}", look)
    assert set(via) == set(ids)
    return via


def test_far_messages_come_through_spark_and_on_time(broker: Broker) -> None:
    ids = _send_far(broker, "through-spark", 200)
    via = _receive_all(broker, "through-spark", ids)
    assert set(via.values()) == {Via.SPARK}
    assert broker.status().pipeline.takeovers == 0


def test_a_cancelled_message_does_not_come_though_spark_hands_it_over(broker: Broker) -> None:
    first_ms = broker.clock.now_ms() + LEAD_MS + 2_000
    kept, dropped = broker.send(
        [
            Draft("cancelled", b"kept", deliver_at_ms=first_ms),
            Draft("cancelled", b"no", deliver_at_ms=first_ms),
        ]
    )
    assert dropped.handle is not None
    wait_for("Spark has absorbed it", lambda: broker.status().ready >= 2)
    assert [answer.value for answer in broker.cancel([dropped.handle])] == ["cancelled"]
    assert list(_receive_all(broker, "cancelled", [kept.id])) == [kept.id]


def test_the_broker_takes_over_from_a_stopped_pipeline_and_gives_back(broker: Broker) -> None:
    pid = broker.pipeline_pid
    assert pid is not None
    java = _children(pid)
    for process in (pid, *java):
        os.kill(process, signal.SIGSTOP)
    ids = _send_far(broker, "stopped", 100)
    wait_for("the broker takes over", lambda: broker.status().pipeline.runner == "embedded")
    via = _receive_all(broker, "stopped", ids)
    assert set(via.values()) == {Via.EMBEDDED}
    for process in (pid, *java):
        os.kill(process, signal.SIGCONT)
    wait_for_spark(broker)
    _receive_all(broker, "after-cont", _send_far(broker, "after-cont", 50))


def test_a_killed_driver_costs_nobody_punctuality(broker: Broker) -> None:
    pid = broker.pipeline_pid
    assert pid is not None
    ids = _send_far(broker, "killed", 100)
    os.kill(pid, signal.SIGKILL)
    _receive_all(broker, "killed", ids)
    wait_for_spark(broker)
    assert broker.pipeline_pid != pid
    assert _receive_all(broker, "restarted", _send_far(broker, "restarted", 50))


def test_the_pipeline_does_not_outlive_the_broker(tmp_path: Path) -> None:
    broker = open_broker(tmp_path / "data", BrokerSettings(lead_ms=LEAD_MS))
    wait_for("the driver runs", lambda: broker.pipeline_pid is not None)
    pid = broker.pipeline_pid
    assert pid is not None
    broker.close()
    assert process_started(pid) == 0


def _children(pid: int) -> list[int]:
    """All processes below this one."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return [*found, *(grandchild for child in found for grandchild in _children(child))]
