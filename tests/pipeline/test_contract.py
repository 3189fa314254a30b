"""The contract of a runner: the same input, the same messages in the same order, with any runner.

Every scenario runs on the embedded runner with both timer stores, on Spark in one process, and on Spark with
executors apart (which is where RocksDB is tried; test_standalone.py has the wheel there). Each world serves
all of them with one broker, because starting Spark is what costs.
What each scenario must yield is worked out beside it, in plain Python; and all must agree to the last value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.contract_scenarios import LEAD_MS, SCENARIOS
from pipeline.contract_world import World
from pipeline.spark_broker import open_broker, wait_for_spark
from tidemill.core.clock import SimulatedClock
from tidemill.core.config import BrokerSettings
from tidemill.core.model import Via
from tidemill.server.process.pipeline_command import why_not_spark

EMBEDDED = "embedded"
WORLDS = (
    (EMBEDDED, "wheel"),
    (EMBEDDED, "rocksdb"),
    ("local[2]", "wheel"),
    ("local-cluster[2,1,1024]", "rocksdb"),
)
START_MS = 1_800_000_000_000

_stories: dict[str, Any] = {}  # what the first runner made of each scenario

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=WORLDS, ids="-".join)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    runner, timer_store = request.param
    master = "" if runner == EMBEDDED else runner
    if master and (problem := why_not_spark()):
        pytest.skip(f"Spark cannot run here: {problem}")
    directory = tmp_path_factory.mktemp("contract") / "data"
    settings = BrokerSettings(lead_ms=LEAD_MS, retention_ms=400 * 86_400_000, timer_store=timer_store)
    with open_broker(directory, settings, master=master, clock=SimulatedClock(START_MS)) as broker:
        if master:
            wait_for_spark(broker)
        yield World(broker, runner)
        pipeline = broker.status().pipeline
        findings = broker.check(tmp_path_factory.mktemp("scratch"))
    assert findings == []
    assert (pipeline.runner, pipeline.takeovers) == ("spark" if master else EMBEDDED, 0)
    assert pipeline.store == timer_store


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_runner_tells_the_same_story(world: World, name: str) -> None:
    played = world.begin(name)
    SCENARIOS[name](played)
    own = Via.EMBEDDED if world.name == EMBEDDED else Via.SPARK
    assert played.vias() <= {Via.NEAR, Via.LEVEL, own}
    assert own in played.vias()
    story = played.story()
    assert _stories.setdefault(name, story) == story
