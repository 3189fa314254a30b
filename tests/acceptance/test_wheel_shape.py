"""The shape of the wheel changes between two runs of `tidemill serve`: nothing is lost, early or doubled."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidemill
from acceptance.serving import Served, wait_until
from tidemill.core.clock import SystemClock

pytestmark = pytest.mark.slow
_now_ms = SystemClock().now_ms
_COUNT = 10_000
_FLAGS = ("--lead", "2s", "--flight-port", "0")
_SHAPES = (
    (),
    ("--wheel-slots", "4000", "--roll-window", "30s"),
    ("--tick", "100ms", "--wheel-slots", "103", "--roll-window", "10s"),
    ("--tick", "100ms", "--wheel-slots", "1300000", "--roll-window", "1d"),
)


def _wheel(served: Served) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{served.endpoint}/v1/wheel", timeout=30) as answer:
        wheel: dict[str, Any] = json.load(answer)
        return wheel


def test_ten_thousand_wait_through_three_other_shapes(tmp_path: Path) -> None:
    served = Served(tmp_path / "data", *_FLAGS)
    served.prepare("orders", "kept")
    served.start()
    try:
        due_ms = _now_ms() + 30_000
        due = {str(number): due_ms + number % 1000 for number in range(_COUNT)}
        with tidemill.Client(served.endpoint) as client:
            client.schedule(pa.table({"body": list(due), "deliver_at": list(due.values())}), topic="orders")
            later = pa.table({"body": ["later"] * 1000, "deliver_at": [due_ms + 3_600_000] * 1000})
            answers = list(client.schedule(later, topic="kept"))
            wait_until(lambda: _wheel(served)["timers"] == _COUNT + 1000, "all to be absorbed")
            client.cancel_many([answer.handle for answer in answers[:900]])
        for shape in _SHAPES[1:]:
            served.stop()
            served = Served(tmp_path / "data", *_FLAGS, *shape).start()
            slots = int(shape[shape.index("--wheel-slots") + 1])
            wait_until(lambda: _is_built(served, slots), f"a wheel of {slots} slots")  # noqa: B023
        assert served.log().count("made for other settings") == 2 * 3  # each shard, each time
        assert _wheel(served)["timers"] >= 100  # those kept; the others may be with the releaser by now
        assert _received(served, due) == Counter(due.keys())
        wait_until(lambda: _wheel(served)["timers"] == 100, "the wheel to show the kept alone")
        with tidemill.Client(served.endpoint) as client:
            assert client.status().pending == 100
    finally:
        served.stop()


def _is_built(served: Served, slots: int) -> bool:
    wheel = _wheel(served)
    return bool(wheel["slots"] == slots and all(shard["step"] > 0 for shard in wheel["shards"]))


def _received(served: Served, due: dict[str, int]) -> Counter[str]:
    seen: Counter[str] = Counter()
    with tidemill.Client(served.endpoint) as client:
        while sum(seen.values()) < len(due):
            messages = client.receive_batch("orders", "group", count=1000, wait="60s")
            assert messages, f"{len(due) - len(seen)} did not come"
            for message in messages:
                assert due[message.text] <= message.released_at_ms <= _now_ms()
                seen[message.text] += 1
            client.ack(*messages)
        assert not client.receive_batch("orders", "group", count=10, wait="1s")
    return seen
