"""Upkeep delays neither sends nor releases: it does not hold the writer lock while it reads and writes."""

from __future__ import annotations

import threading

import pytest

from helpers.small_broker import RETENTION_MS
from tidemill.core.errors import StorageError
from tidemill.store import index_checkpoint, message_store
from tidemill.store.find.find_index import FindIndex
from tidemill.store.upkeep import head_cut
from tidemill.testing.faulty_file import FaultyFile

FAR_MS = 100 * RETENTION_MS


def _is_free(lock) -> bool:
    """Whether another thread could take the lock now."""
    got: list[bool] = []

    def take():
        got.append(lock.acquire(blocking=False))
        if got[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return got[0]


@pytest.fixture
def noted(small, monkeypatch):
    """What was done, and whether the writer lock was free then."""
    found: list[tuple[str, bool]] = []

    def watch(owner, method):
        real = getattr(owner, method)

        def noting(self, *args, **kwargs):
            found.append((method, _is_free(small.broker.store.writer.lock)))
            return real(self, *args, **kwargs)

        monkeypatch.setattr(owner, method, noting)

    watch(FaultyFile, "sync")
    watch(index_checkpoint.NotedIndexes, "encode")
    watch(FindIndex, "write_flushing")
    watch(FindIndex, "remove")
    return found


def test_a_checkpoint_syncs_and_encodes_without_the_writer_lock(small, noted):
    small.broker.topics.create("orders")
    noted.clear()
    for _ in range(2):
        for i in range(40):
            small.send("orders", b"%d" % i, delay_ms=FAR_MS if i % 2 else None, keys=(f"k{i}",))
        small.broker.store.checkpoint()
    assert {"sync", "encode", "write_flushing", "remove"} <= {what for what, _ in noted}
    assert all(is_free for _, is_free in noted), noted


def test_what_is_settled_while_a_checkpoint_is_encoded_is_in_the_log_alone(small, monkeypatch):
    receipts = [small.send("orders", b"%d" % i, delay_ms=FAR_MS) for i in range(40)]
    real = index_checkpoint.NotedIndexes.encode

    def encode(self):
        small.broker.cancel([receipt.handle for receipt in receipts[::2]])
        small.send("orders", b"new", delay_ms=FAR_MS)
        return real(self)

    monkeypatch.setattr(index_checkpoint.NotedIndexes, "encode", encode)
    small.broker.store.checkpoint()
    before = small.state()
    small.kill_and_open(power_cut=True)
    assert small.state() == before
    assert small.broker.status().pending == 21


def test_entries_whose_sync_failed_are_synced_by_the_next_checkpoint(small, monkeypatch):
    small.send("orders", delay_ms=FAR_MS)
    tried: list[str] = []
    real = FaultyFile.sync

    def sync(self):
        if self.path.parent.name == "entries":
            tried.append(self.path.name)
            if len(tried) == 1:
                raise StorageError("no more files can be opened")
        real(self)

    monkeypatch.setattr(FaultyFile, "sync", sync)
    with pytest.raises(StorageError):
        small.broker.store.checkpoint()
    small.broker.store.checkpoint()
    assert len(tried) == 2


def test_while_nothing_is_past_retention_no_entry_is_looked_at(small, monkeypatch):
    for i in range(30):
        small.send("orders", bytes(1000), delay_ms=FAR_MS + i)
    assert len(small.broker.store.log.segment_starts()) > 2
    with monkeypatch.context() as patched:
        patched.setattr(small.broker.store.entries, "read", lambda *_: pytest.fail("entries were read"))
        small.broker._maintenance.retain(small.clock.now_ms())


def test_what_is_alive_is_counted_a_bounded_part_at_a_time(small, monkeypatch):
    monkeypatch.setattr(head_cut, "_COUNT_ROWS", 4)
    for i in range(30):
        small.send("orders", bytes(1000), delay_ms=FAR_MS + i)
    small.clock.advance(RETENTION_MS + 1)
    small.send("orders", delay_ms=FAR_MS)
    entries = small.broker.store.entries
    read, spans = entries.read, []

    def noting(first, end, matters=None):
        spans.append(end - first)
        return read(first, end, matters)

    monkeypatch.setattr(entries, "read", noting)
    small.broker._maintenance.retain(small.clock.now_ms())
    assert sum(spans) >= 20
    assert max(spans) <= 4
    assert small.broker.store.log.head == 0, "most is alive"


def test_the_near_lower_bound_moves_past_everything_a_bounded_part_at_a_time(small, monkeypatch):
    monkeypatch.setattr(message_store, "_FLOOR_ROWS", 4)
    for i in range(30):
        small.send("orders", delay_ms=1_000 if i == 20 else FAR_MS)
    small.broker.store.checkpoint()
    assert small.broker.store.indexes.near_floor == 20
    small.advance(2_000)
    small.broker.store.checkpoint()
    assert small.broker.store.indexes.near_floor == 30
