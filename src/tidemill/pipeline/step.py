"""The step of one shard, as a Spark task: the same engine, the same stages as in the broker.

Owns nothing but the way from Arrow batches to `ShardEngine.step` and back. It takes the shard's lock, and
does nothing when the epoch is not the broker's present one, when another process holds the shard, or when the
cursor is already further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pyarrow as pa

from tidemill.core.errors import CorruptionError, DirectoryLockedError
from tidemill.log.disk import RealDisk
from tidemill.pipeline.settings import PipelineSettings
from tidemill.pipeline.wire import OUTCOME_SCHEMA, Order, read_order
from tidemill.store.entry_files import EntryFiles
from tidemill.store.upkeep.memory import give_back_memory
from tidemill.timer.cursor import Cursor
from tidemill.timer.engine import Admitted, ShardEngine, StepOutcome, StepTarget
from tidemill.timer.progress import seconds_name
from tidemill.timer.ready_format import Runner
from tidemill.timer.stages.admit import Batch
from tidemill.timer.step_figures import StepWork
from tidemill.timer.target import read_target


def step_function(
    settings: PipelineSettings,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: one call for each partition, that is for each shard."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrived = read_order(batches)
        if arrived is not None:
            order, entries, scan_s = arrived
            del arrived
            outcome = take_step(settings, order, entries, scan_s)
            del entries
            give_back_memory()  # the next large step may be hours away
            yield _outcome_batch(order, outcome)

    return step


def take_step(
    settings: PipelineSettings, order: Order, entries: Batch, scan_s: float = 0.0
) -> StepOutcome | None:
    """Step one shard; None when it was not ours to step. Reading the entries took `scan_s`."""
    disk = RealDisk()
    try:
        target = read_target(disk, settings.timer_directory)
    except CorruptionError:
        return None
    if target is None or target.epoch != order.epoch:
        return None
    files = EntryFiles(disk, settings.entries_directory, settings.entry_chunk_rows)
    engine = ShardEngine(
        disk, settings.timer_directory, order.shard, settings.timer, files, runner=Runner.SPARK
    )
    try:
        with closing(engine.open(files.head_seq)):
            return engine.step(
                StepTarget(order.epoch, order.seq, order.tick),
                settings.limits,
                Admitted(order.first_seq, order.end_seq, entries, scan_s),
            )
    except DirectoryLockedError:
        return None
    finally:
        files.close()


def _outcome_batch(order: Order, outcome: StepOutcome | None) -> pa.RecordBatch:
    outcome = outcome or StepOutcome(Cursor(), has_reached=False, is_stale=True)
    cursor, work = outcome.cursor, outcome.work or StepWork()
    row = {
        "shard": order.shard,
        "epoch": order.epoch,
        "step": cursor.step,
        "seq": cursor.seq,
        "tick": cursor.tick,
        "absorbed": work.absorbed,
        "handed_over": work.handed_over,
        "has_reached": outcome.has_reached,
        "is_stale": outcome.is_stale,
        "rolled": work.rolled,
        "already_due": work.already_due,
        **{seconds_name(stage): seconds for stage, seconds in work.times.items()},
    }
    return pa.RecordBatch.from_pylist([row], schema=OUTCOME_SCHEMA)
