"""The processes that a measurement starts: one that fills a directory and is killed, one that opens it again.

Run as `python -m tidemill.cli.bench.child fill|reopen DIR …`; each prints one JSON object and, having
printed it, `fill` holds the directory open until it is killed.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from pathlib import Path

from tidemill.broker.broker import Broker
from tidemill.cli.bench.own_usage import anonymous_mb
from tidemill.cli.bench.settling import wait_until_absorbed
from tidemill.cli.bench.workload import TOPIC, tables
from tidemill.core.clock import stopwatch_s
from tidemill.core.model import Draft
from tidemill.core.parent_watch import when_untied
from tidemill.log.disk import RealDisk


def fill(directory: Path, few_count: int, pending_count: int, tail_count: int, tidy_s: int) -> None:
    """Fill, say what that took, send the tail, say so, and stay."""
    broker = Broker(directory)
    _send(broker, few_count)
    _rest(broker, tidy_s)
    few_mb = anonymous_mb()
    _send(broker, pending_count - few_count - tail_count)
    _rest(broker, tidy_s)
    disk = RealDisk()
    index_bytes = sum(disk.allocated_bytes(directory / name) for name in ("index", "timer"))
    figures = {
        "index_bytes_per_pending": index_bytes / broker.status().pending,
        "memory_growth_10m_mb": anonymous_mb() - few_mb,
    }
    print(json.dumps(figures), flush=True)
    # What the kill finds is not saved in any checkpoint and not absorbed by the timer.
    _send(broker, tail_count)
    print(json.dumps({"pending": broker.status().pending}), flush=True)
    threading.Event().wait()


def reopen(directory: Path) -> None:
    """Open the directory and serve one send; say how long that took."""
    begun_s = stopwatch_s()
    with Broker(directory) as broker:
        broker.send([Draft(TOPIC, b"served", delay_ms=3_600_000)])
        took_s = stopwatch_s() - begun_s
        print(json.dumps({"reopen_10m_s": took_s, "pending": broker.status().pending}), flush=True)


def _send(broker: Broker, count: int) -> None:
    for table in tables(count, broker.clock.now_ms()):
        broker.send_table(table, topic=TOPIC)


def _rest(broker: Broker, tidy_s: int) -> None:
    """Wait until everything is absorbed, and as long again as the services need to tidy up."""
    wait_until_absorbed(broker)
    until_s = stopwatch_s() + tidy_s
    while (left_s := until_s - stopwatch_s()) > 0:
        threading.Event().wait(left_s)
    gc.collect()


if __name__ == "__main__":
    what, where, *counts = sys.argv[1:]
    if what == "fill":
        when_untied(lambda: os._exit(1))  # nobody would be left to kill it
        fill(Path(where), *map(int, counts))
    else:
        reopen(Path(where))
