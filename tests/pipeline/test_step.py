"""The step of a shard as a Spark task would take it: copies, zombies and orders of a past epoch do no harm.

No Spark here: `take_step` is what its workers call, and real processes call it at the same moment.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from tidemill.log.disk import RealDisk
from tidemill.log.row_table import RowTable
from tidemill.pipeline.settings import PipelineSettings
from tidemill.pipeline.source import ShardPartition, StepOffset, TimerStreamReader
from tidemill.pipeline.step import step_function, take_step
from tidemill.pipeline.wire import Order, read_order
from tidemill.store.formats.entry_format import ENTRY
from tidemill.timer.check import check_timer
from tidemill.timer.cursor import Cursor
from tidemill.timer.progress import note_progress, read_progress
from tidemill.timer.ready_files import ReadyFiles
from tidemill.timer.ready_format import Runner
from tidemill.timer.settings import StepLimits, TimerSettings
from tidemill.timer.shard_lock import take_shard_lock
from tidemill.timer.step_figures import StepWork
from tidemill.timer.target import raise_epoch, read_cursor, shard_directory

NOW_MS = 1_800_000_000_000
TICK = NOW_MS // 1000 + 30
COUNT = 2_000

_COPY = """
import json, sys
from tidemill.pipeline.settings import PipelineSettings
from tidemill.pipeline.step import step_function, take_step
from tidemill.pipeline.wire import NO_ENTRIES, Order
settings, order = PipelineSettings.from_json(sys.argv[1]), Order(**json.loads(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
outcome = take_step(settings, order, NO_ENTRIES)
work = outcome and outcome.work
print(json.dumps(None if work is None else [work.absorbed, work.handed_over]))
"""


@pytest.fixture
def settings(tmp_path: Path) -> PipelineSettings:
    made = PipelineSettings(str(tmp_path), "local[2]", 30_000, TimerSettings(), StepLimits(), 1 << 16, 100)
    rows = np.zeros(COUNT, ENTRY)
    rows["place"] = np.arange(COUNT)
    # A fifth is due at once, the others later.
    rows["deliver_at_ms"] = NOW_MS + np.where(np.arange(COUNT) % 10 < 2, 1_000, 600_000)
    rows["stored_at_ms"] = NOW_MS - 60_000
    table = RowTable(RealDisk(), made.entries_directory, ENTRY, made.entry_chunk_rows, lambda: False)
    table.write(0, rows)
    table.close()
    made.timer_directory.mkdir()
    return made


def _order(settings: PipelineSettings, epoch: int, tick: int = TICK) -> Order:
    return Order(shard=0, epoch=epoch, seq=COUNT, tick=tick, first_seq=0, end_seq=COUNT)


def _raise_epoch(settings: PipelineSettings) -> int:
    return raise_epoch(RealDisk(), settings.timer_directory, NOW_MS, COUNT, Runner.SPARK)


def _cursor(settings: PipelineSettings) -> Cursor | None:
    return read_cursor(RealDisk(), shard_directory(settings.timer_directory, 0))


def _handed_over(settings: PipelineSettings) -> list[int]:
    ready = ReadyFiles(RealDisk(), shard_directory(settings.timer_directory, 0))
    return sorted(seq for name in ready.names() for seq in ready.read(name)[1]["seq"].tolist())


def _files(settings: PipelineSettings) -> dict[Path, bytes]:
    directory = shard_directory(settings.timer_directory, 0)
    names = [path for path in directory.rglob("*") if path.is_file() and path.name not in ("lock", "wheel")]
    return {path: path.read_bytes() for path in names}


def _take(settings: PipelineSettings, order: Order) -> tuple[int, int] | None:
    reader = TimerStreamReader(settings)
    offset = StepOffset(2, order.epoch, order.seq, order.tick)
    arrived = read_order(reader.read(ShardPartition(order.shard, offset)))
    assert arrived is not None
    outcome = take_step(settings, *arrived)
    if outcome is None:
        return None
    work = outcome.work or StepWork()
    return work.absorbed, work.handed_over


def test_a_step_absorbs_and_hands_over(settings: PipelineSettings) -> None:
    assert _take(settings, _order(settings, _raise_epoch(settings))) == (COUNT // 2, COUNT // 10)
    assert _handed_over(settings) == [seq for seq in range(0, COUNT, 2) if seq % 10 < 2]
    assert check_timer(RealDisk(), settings.timer_directory) == []


def test_a_step_reports_what_it_did_and_how_long_its_stages_took(settings: PipelineSettings) -> None:
    order = _order(settings, _raise_epoch(settings))
    reader = TimerStreamReader(settings)
    offset = StepOffset(2, order.epoch, order.seq, order.tick)
    batches = list(reader.read(ShardPartition(order.shard, offset)))
    assert sum(batch.column("scan_s")[0].as_py() for batch in batches) > 0
    step = step_function(settings)(iter(batches))
    (row,) = [row for batch in step for row in batch.to_pylist()]
    note_progress(RealDisk(), settings.timer_directory, 1, [row])
    (done,) = read_progress(RealDisk(), settings.timer_directory)
    assert (done.shard, done.epoch, done.step) == (0, order.epoch, 1)
    assert (done.work.absorbed, done.work.handed_over) == (COUNT // 2, COUNT // 10)
    assert (done.work.rolled, done.work.already_due) == (0, COUNT // 10)
    assert all(seconds > 0 for seconds in done.work.times.values())


def test_a_zombie_of_a_past_epoch_changes_nothing(settings: PipelineSettings) -> None:
    past = _raise_epoch(settings)
    _take(settings, _order(settings, past))
    present = _raise_epoch(settings)
    before = _files(settings)
    assert _take(settings, _order(settings, past, TICK + 10_000)) is None
    assert _files(settings) == before
    assert _take(settings, _order(settings, present, TICK + 10_000)) == (0, COUNT // 2 - COUNT // 10)


def test_an_order_that_is_behind_changes_nothing(settings: PipelineSettings) -> None:
    epoch = _raise_epoch(settings)
    _take(settings, _order(settings, epoch, TICK + 5))
    before = _files(settings)
    assert _take(settings, _order(settings, epoch)) == (0, 0)
    assert _files(settings) == before


def test_while_somebody_else_is_at_work_nothing_happens(settings: PipelineSettings) -> None:
    epoch = _raise_epoch(settings)
    _take(settings, _order(settings, epoch))
    lock = take_shard_lock(RealDisk(), shard_directory(settings.timer_directory, 0))
    before = _files(settings)
    assert _take(settings, _order(settings, epoch, TICK + 10_000)) is None
    lock.release()
    assert _files(settings) == before


def test_entries_that_came_along_for_another_cursor_are_read_again(settings: PipelineSettings) -> None:
    """A copy planned before the first one finished brings entries that are absorbed already."""
    epoch = _raise_epoch(settings)
    half = replace(_order(settings, epoch), seq=COUNT // 2, end_seq=COUNT // 2)
    assert _take(settings, half) == (COUNT // 4, COUNT // 20)
    reader = TimerStreamReader(settings)
    stale = read_order(reader.read(ShardPartition(0, StepOffset(2, epoch, COUNT // 2 + 7, TICK))))
    assert stale is not None
    assert _take(settings, _order(settings, epoch)) == (COUNT // 4, COUNT // 20)
    take_step(settings, *stale)
    assert _handed_over(settings) == [seq for seq in range(0, COUNT, 2) if seq % 10 < 2]
    assert check_timer(RealDisk(), settings.timer_directory) == []


def test_a_backlog_is_worked_off_in_bounded_steps_by_due_time(settings: PipelineSettings) -> None:
    """The clock is weeks further: whatever is due goes out a part at a time, the earliest first."""
    bounded = replace(settings, limits=StepLimits(rows_max=COUNT, due_max=150))
    epoch = _raise_epoch(settings)
    _take(settings, _order(settings, epoch, NOW_MS // 1000 - 100))  # all absorbed, nothing due yet
    late_tick = NOW_MS // 1000 + 21 * 86_400
    steps = []
    while (outcome := _take(bounded, _order(settings, epoch, late_tick))) not in (None, (0, 0)):
        assert outcome is not None
        steps.append(outcome[1])
        assert len(steps) < 100
    assert sum(steps) == COUNT // 2
    assert max(steps) <= 2 * bounded.limits.due_max
    ready = ReadyFiles(RealDisk(), shard_directory(settings.timer_directory, 0))
    dues = [due for name in ready.names() for due in ready.read(name)[1]["deliver_at_ms"].tolist()]
    assert dues == sorted(dues)


@pytest.mark.slow
def test_speculative_copies_at_the_same_moment_do_the_work_once(settings: PipelineSettings) -> None:
    epoch = _raise_epoch(settings)
    order = replace(_order(settings, epoch), end_seq=0)  # no entries come along: each reads them itself
    arguments = [settings.to_json(), json.dumps(asdict(order))]
    copies = [
        subprocess.Popen(
            [sys.executable, "-c", _COPY, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for copy in copies:
        assert copy.stdout is not None
        assert copy.stdout.readline() == "ready\n"
    for copy in copies:
        assert copy.stdin is not None
        copy.stdin.write("go\n")
        copy.stdin.flush()
    outcomes = [json.loads(copy.communicate(timeout=60)[0]) for copy in copies]
    worked = [outcome for outcome in outcomes if outcome not in (None, [0, 0])]
    assert worked == [[COUNT // 2, COUNT // 10]]
    assert _handed_over(settings) == [seq for seq in range(0, COUNT, 2) if seq % 10 < 2]
    assert check_timer(RealDisk(), settings.timer_directory) == []


@pytest.mark.parametrize("name", ["wheel", "timer-log/00000000000000000000", "cursor.1", "header.1"])
def test_a_damaged_shard_is_built_again_by_the_step_that_meets_it(
    settings: PipelineSettings, name: str
) -> None:
    epoch = _raise_epoch(settings)
    _take(settings, _order(settings, epoch))
    path = shard_directory(settings.timer_directory, 0) / name
    content = path.read_bytes()
    path.write_bytes(bytes(len(content)) if name != "wheel" else content[: len(content) // 2])
    for _ in range(3):
        _take(settings, _order(settings, epoch, TICK + 10_000))
    assert set(_handed_over(settings)) == set(range(0, COUNT, 2))
    assert check_timer(RealDisk(), settings.timer_directory) == []
