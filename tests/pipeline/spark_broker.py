"""A broker with a real Spark pipeline beside it, for tests that watch both."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

from tidemill.broker.broker import Broker
from tidemill.core.clock import Clock, SystemClock, stopwatch_s
from tidemill.core.config import BrokerSettings
from tidemill.server.process.pipeline_command import pipeline_command

PATIENCE_S = 120.0
_NAP_S = 0.05


def open_broker(
    directory: Path, settings: BrokerSettings, *, master: str = "local[2]", clock: Clock | None = None
) -> Broker:
    """Without a master: the embedded runner."""
    command = pipeline_command(sys.executable, directory, settings, master, poll_ms=100) if master else ()
    return Broker(directory, settings, clock=clock or SystemClock(), pipeline_command=command)


def wait_for(what: str, is_so: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Look again and again until it is so; real processes offer nothing to wait on."""
    until_s = stopwatch_s() + patience_s
    while not is_so():
        assert stopwatch_s() < until_s, f"gave up waiting: {what}"
        Event().wait(_NAP_S)


def wait_for_spark(broker: Broker) -> None:
    wait_for("Spark is the timer runner", lambda: broker.status().pipeline.runner == "spark")
