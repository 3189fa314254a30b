"""Measures what ten million pending messages cost: memory, disk beside them, and opening after a kill.

Each part runs in a process of its own, so that nothing of another measurement is counted. As
`python -m tidemill.cli.bench.pending fill|reopen DIR …` it prints JSON objects; `fill` then holds the
directory open until it is killed.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from tidemill.broker.broker import Broker
from tidemill.cli.bench.measuring import anonymous_mb, wait_until_absorbed
from tidemill.cli.bench.workload import TOPIC, Scale, tables
from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import StorageError
from tidemill.core.model import Draft
from tidemill.core.parent_watch import when_untied
from tidemill.log.disk import RealDisk


def measure_pending(directory: Path, scale: Scale) -> dict[str, float]:
    """index_bytes_per_pending, memory_growth_10m_mb and reopen_10m_s."""
    where = directory / "pending"
    with _child(
        "fill", where, scale.few_count, scale.pending_count, scale.tail_count, scale.tidy_s
    ) as filler:
        assert filler.stdout is not None
        try:
            figures = _read(filler.stdout.readline())
            _read(filler.stdout.readline())
        finally:
            filler.kill()  # SIGKILL, with the directory open
    with _child("reopen", where) as reopener:
        reopened = _read(reopener.communicate()[0])
    if reopened["pending"] != scale.pending_count + 1:
        raise StorageError(
            f"{scale.pending_count + 1} messages should be pending after the kill, "
            f"{reopened['pending']} are; keep the directory with --data and report this"
        )
    return {**figures, "reopen_10m_s": reopened["reopen_10m_s"]}


def _child(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        (sys.executable, "-m", "tidemill.cli.bench.pending", *map(str, arguments)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a terminal's Ctrl-C is for the parent alone
    )


def _read(line: str) -> dict[str, float]:
    if not line.strip():
        raise StorageError("a measuring process ended early; its message is above")
    content: dict[str, float] = json.loads(line)
    return content


def _fill(directory: Path, few_count: int, pending_count: int, tail_count: int, tidy_s: int) -> None:
    """Fill and print what that took, send the tail and print how many are pending, and wait."""
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
    # At the kill the tail is in no checkpoint and not absorbed by the timer.
    _send(broker, tail_count)
    print(json.dumps({"pending": broker.status().pending}), flush=True)
    threading.Event().wait()


def _reopen(directory: Path) -> None:
    """Open the directory and serve one send; print how long that took."""
    begun_s = stopwatch_s()
    with Broker(directory) as broker:
        broker.send([Draft(TOPIC, b"served", delay_ms=3_600_000)])
        took_s = stopwatch_s() - begun_s
        print(json.dumps({"reopen_10m_s": took_s, "pending": broker.status().pending}), flush=True)


def _send(broker: Broker, count: int) -> None:
    for table in tables(count, broker.clock.now_ms()):
        broker.send_table(table, topic=TOPIC)


def _rest(broker: Broker, tidy_s: int) -> None:
    """Wait until everything is absorbed, and for the time that the services need to tidy up."""
    wait_until_absorbed(broker)
    threading.Event().wait(tidy_s)
    gc.collect()


if __name__ == "__main__":
    what, where, *counts = sys.argv[1:]
    if what == "fill":
        when_untied(lambda: os._exit(1))  # else it would outlive its parent
        _fill(Path(where), *map(int, counts))
    else:
        _reopen(Path(where))
