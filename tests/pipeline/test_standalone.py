"""A standalone master with two workers on loopback: the same contract, and a worker that dies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeline.contract_scenarios import LEAD_MS, SCENARIOS
from pipeline.contract_world import World
from pipeline.spark_broker import open_broker, wait_for_spark
from pipeline.standalone import Standalone, standalone
from tidemill.core.clock import SimulatedClock
from tidemill.core.config import BrokerSettings
from tidemill.core.model import Via
from tidemill.server.process.pipeline_command import why_not_spark

START_MS = 1_800_000_000_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not_spark()), reason=f"Spark cannot run here: {why_not_spark()}"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def world(cluster: Standalone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("standalone") / "data"
    settings = BrokerSettings(lead_ms=LEAD_MS)
    with open_broker(directory, settings, master=cluster.master, clock=SimulatedClock(START_MS)) as broker:
        wait_for_spark(broker)
        yield World(broker)
        findings = broker.check(tmp_path_factory.mktemp("scratch"))
    assert findings == []


@pytest.mark.parametrize("name", ["near_and_far", "cancels", "ordered_groups"])
def test_executors_of_a_cluster_turn_the_wheel(world: World, name: str) -> None:
    played = world.begin(name)
    SCENARIOS[name](played)
    assert played.vias() <= {Via.NEAR, Via.SPARK}
    assert Via.SPARK in played.vias()
    assert world.broker.status().pipeline.takeovers == 0


def test_a_worker_of_the_cluster_dies_and_messages_still_come_in_time(
    world: World, cluster: Standalone
) -> None:
    played = world.begin("a-worker-dies")
    played.send([(f"m{i}".encode(), 100_000 + i) for i in range(50)])
    cluster.workers[0].kill()
    played.advance_to(200_000)
    played.check_exact()
