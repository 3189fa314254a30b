"""What was derived again after damage is counted in the metrics, by kind."""

from __future__ import annotations

from pathlib import Path

from helpers.small_broker import SmallBroker
from tidemill.server.metrics import BrokerCollector


def _counts(small: SmallBroker) -> dict[str, float]:
    (family,) = [m for m in BrokerCollector(small.broker).collect() if m.name == "tidemill_derived_again"]
    return {sample.labels["kind"]: sample.value for sample in family.samples}


def test_a_damaged_run_of_the_find_index_is_counted(tmp_path: Path) -> None:
    small = SmallBroker(tmp_path / "data")
    for number in range(20):
        small.send("t", b"%d" % number, delay_ms=60_000)
    small.broker.store.checkpoint()
    assert _counts(small) == {"entries": 0, "queues": 0, "find": 0, "timer": 0}
    small.kill()
    (run,) = (small.directory / "index" / "find").glob("*.run")
    run.write_bytes(run.read_bytes()[:-1])
    small.open()
    assert _counts(small)["find"] == 1
    small.check()
    small.close()
