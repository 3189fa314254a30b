"""Damage that hides the newest epoch from the broker must not stop the timer."""

from __future__ import annotations

from helpers.small_broker import SmallBroker

_LATER_MS = 60_000


def test_the_timer_goes_on_above_an_epoch_that_only_its_store_still_knows(tmp_path):
    small = SmallBroker(tmp_path / "data", timer_store="rocksdb", shards=1)
    shard = small.directory / "timer" / "shard-000"
    small.send("t", b"1", delay_ms=_LATER_MS)
    small.advance(1_000)
    small.close()
    old = {path: path.read_bytes() for path in shard.glob("cursor.*")}
    for body in (b"2", b"3", b"4"):
        small.open()
        small.send("t", body, delay_ms=_LATER_MS)
        small.advance(1_000)
        small.close()
    for path, content in old.items():
        path.write_bytes(content)
    (small.directory / "timer" / "target").unlink()
    small.open()
    small.send("t", b"5", delay_ms=_LATER_MS)
    small.advance(2 * _LATER_MS)
    assert sorted(small.bodies("t")) == [b"1", b"2", b"3", b"4", b"5"]
    assert small.broker.status().swept == 0
    small.check()
    small.close()
