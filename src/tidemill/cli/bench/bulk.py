"""Measures sending in bulk, absorbing what was sent, and cancelling it again: all durable, one process.

The broker runs as it always does, with its services at work beside the sender.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from statistics import median

from tidemill.broker.broker import Broker
from tidemill.cli.bench.measuring import wait_until_absorbed
from tidemill.cli.bench.workload import TOPIC, Scale, tables
from tidemill.core.clock import stopwatch_s
from tidemill.core.config import BrokerSettings
from tidemill.core.model import CancelAnswer, Handle
from tidemill.log.disk import RealDisk
from tidemill.store.entry_files import EntryFiles
from tidemill.timer.embedded_runner import EmbeddedRunner
from tidemill.timer.ready_format import Runner
from tidemill.timer.settings import TimerSettings
from tidemill.timer.target import raise_epoch

_CANCEL_BATCH = 1 << 14
_ABSORB_RUNS = 3
# Roughly what a message takes in all files.
_BYTES_EACH = 500
_MIB = 1 << 20


def touch_memory(path: Path, size: int) -> None:
    """Write a file of this size and remove it again.

    A virtual machine gets its memory only when it is first touched, which is far slower than any disk; a
    broker that has run for a while has that behind it.
    """
    disk = RealDisk()
    disk.make_dir(path.parent)
    file = disk.open(path, create=True)
    block = bytes(_MIB)
    for at in range(0, size, _MIB):
        file.write(at, block)
    file.close()
    disk.remove(path)


def measure_bulk(directory: Path, scale: Scale) -> dict[str, float]:
    """bulk_send_per_s, absorb_per_s (the median of three) and cancel_per_s."""
    touch_memory(directory / "warm-up", scale.bulk_count * _BYTES_EACH)
    with Broker(directory / "bulk") as broker:
        batches = list(tables(scale.bulk_count, broker.clock.now_ms()))
        broker.send_table(batches[0].slice(0, 100), topic=TOPIC)
        begun_s = stopwatch_s()
        results = [broker.send_table(batch, topic=TOPIC) for batch in batches]
        sent_s = stopwatch_s() - begun_s
        wait_until_absorbed(broker)
        absorb_per_s = median(_absorb(broker, directory / f"absorb-{run}") for run in range(_ABSORB_RUNS))
        handles = itertools.chain.from_iterable(result.handles() for result in results)
        cancel_per_s = _cancel(broker, list(itertools.islice(handles, scale.cancel_count)))
    return {
        "bulk_send_per_s": scale.bulk_count / sent_s,
        "absorb_per_s": absorb_per_s,
        "cancel_per_s": cancel_per_s,
    }


def _absorb(broker: Broker, timer_directory: Path) -> float:
    """Timers per second that an embedded runner absorbs from the broker's entries into a new timer."""
    disk, store = RealDisk(), broker.store
    settings = BrokerSettings()
    entries = EntryFiles(disk, store.directory / "index" / "entries", store.settings.sizes.entry_chunk_rows)
    runner = EmbeddedRunner(disk, timer_directory, TimerSettings(), entries, lead_ms=settings.lead_ms)
    now_ms, end_seq = broker.clock.now_ms(), store.safe_seq()
    disk.make_dir(timer_directory)
    runner.open(raise_epoch(disk, timer_directory, now_ms, end_seq), 0)
    try:
        begun_s = stopwatch_s()
        runner.run_until_reached(now_ms, end_seq)
        took_s = stopwatch_s() - begun_s
        absorbed = runner.figures.counts[Runner.EMBEDDED].absorbed
    finally:
        runner.close()
        entries.close()
    return absorbed / took_s


def _cancel(broker: Broker, handles: list[Handle]) -> float:
    batches = [handles[at : at + _CANCEL_BATCH] for at in range(0, len(handles), _CANCEL_BATCH)]
    begun_s = stopwatch_s()
    answers = [broker.cancel(batch) for batch in batches]
    took_s = stopwatch_s() - begun_s
    assert all(answer is CancelAnswer.CANCELLED for batch in answers for answer in batch)
    return len(handles) / took_s
