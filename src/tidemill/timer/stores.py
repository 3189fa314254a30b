"""Which timer store a shard has: made by the settings, and removed by the names both are known under."""

from __future__ import annotations

from pathlib import Path

from tidemill.log.disk import Disk
from tidemill.timer.rocksdb.rocks_store import ROCKS_NAME, RocksStore
from tidemill.timer.settings import StoreKind, TimerSettings
from tidemill.timer.timer_store import TimerStore
from tidemill.timer.wheel.wheel_store import TIMER_LOG_NAME, WHEEL_NAME, WheelStore


def make_store(disk: Disk, shard_directory: Path, settings: TimerSettings) -> TimerStore:
    """The store that `settings` ask for; it finds what is there and makes what is not."""
    if settings.store is StoreKind.ROCKSDB:
        return RocksStore(disk, shard_directory, settings)
    return WheelStore(disk, shard_directory, settings)


def remove_stores(disk: Disk, shard_directory: Path) -> None:
    """Remove the files of every kind of store, durably: what comes next may use the same names."""
    disk.remove(shard_directory / WHEEL_NAME)
    disk.remove_tree(shard_directory / TIMER_LOG_NAME)
    disk.remove_tree(shard_directory / ROCKS_NAME)
    disk.sync_dir(shard_directory)
