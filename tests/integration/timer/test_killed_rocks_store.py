"""A process killed in the middle of its timer steps leaves a whole RocksDB store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from helpers.timer_harness import SMALL, ShardHarness, rocks_keys_on_disk
from tidemill.log.disk import RealDisk
from tidemill.timer.check import check_timer
from tidemill.timer.settings import StoreKind

_VICTIM = """
import sys
sys.path.insert(0, {helpers!r})
from helpers.timer_harness import ShardHarness
from tidemill.timer.settings import StoreKind, TimerSettings
from pathlib import Path
shard = ShardHarness(Path({directory!r}), TimerSettings(1000, 1, store=StoreKind.ROCKSDB)).open()
tick = 1_000
while True:
    shard.add(*[(tick + 5 + n % 50) * 1000 for n in range(5_000)])
    shard.run(tick)
    tick += 1
    print(len(shard.entries), len(shard.handed), flush=True)
"""


def test_a_process_killed_in_the_middle_of_its_steps_leaves_a_whole_store(tmp_path):
    """A real kill -9, at whatever RocksDB was doing then."""
    directory = tmp_path / "timer"
    script = _VICTIM.format(helpers=str(Path(__file__).parents[2]), directory=str(directory))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        for _ in range(8):
            victim.stdout.readline()
        os.kill(victim.pid, signal.SIGKILL)
        said = victim.stdout.read().splitlines()
    absorbed = int(said[-1].split()[0]) if said else 5_000 * 8
    assert check_timer(RealDisk(), directory, is_crashed=True) == []
    shard = ShardHarness(directory, replace(SMALL, store=StoreKind.ROCKSDB, slots=1 << 20)).open()
    cursor = shard.engines[0].cursor
    assert cursor.seq >= absorbed
    waiting = rocks_keys_on_disk(shard)
    known = waiting[waiting["seq"] < cursor.seq]
    assert len(np.unique(known["seq"])) == len(known)
    shard.close()
    shard.check()
