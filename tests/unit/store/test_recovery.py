"""Opening again: the state comes from the commit log alone, whatever happened to the derived files."""

from __future__ import annotations

import pytest

from helpers.small_broker import SmallBroker
from tidemill.core.errors import CorruptionError, StorageError
from tidemill.core.model import Draft, Once, TopicType


def _work(small: SmallBroker) -> None:
    """A bit of everything."""
    broker = small.broker
    broker.topics.create("fifo", TopicType.FIFO, 2)
    receipts = [
        small.send("orders", b"o%d" % i, delay_ms=5_000 + i * 700, keys=(f"k{i}",)) for i in range(40)
    ]
    broker.send([Draft("plain", b"p%d" % i, keys=("p",)) for i in range(30)])
    broker.send([Draft("fifo", b"f%d" % i, delay_ms=2_000, message_group=f"g{i % 3}") for i in range(9)])
    far = [small.send("orders", b"far%d" % i, delay_ms=3_600_000 * (i + 1)) for i in range(20)]
    broker.cancel([receipts[3].handle, far[4].handle])
    broker.reschedule([receipts[5].handle, far[6].handle], by_ms=60_000)
    broker.reschedule([far[7].handle], deliver_at_ms=small.clock.now_ms() + 1_000)
    small.send("orders", b"once", delay_ms=900_000, keys=("one",), once=Once.KEEP)
    small.send("orders", b"again", delay_ms=800_000, keys=("one",), once=Once.REPLACE)
    small.advance(15_000)
    taken = broker.receive("orders", "g", count=6)
    broker.ack([d.ack_token for d in taken[:3]])
    broker.change_invisibility([taken[3].ack_token], 90_000)
    broker.receiver.set_group("g", attempts_max=2)
    broker.topics.change("orders", is_paused=True, release_rate_max=7)
    broker.topics.create("gone")
    small.send("gone", delay_ms=500_000)
    broker.topics.delete("gone", is_forced=True)


def test_opening_after_a_kill_gives_the_state_before(small):
    _work(small)
    before = small.state()
    small.kill_and_open()
    assert small.state() == before


def test_opening_after_a_close_gives_the_state_before_and_reads_no_frame_twice(small):
    _work(small)
    before = small.state()
    small.reopen()
    assert small.state() == before
    assert small.broker.store.bytes_since_checkpoint == 0


def test_a_checkpoint_and_more_work_and_a_kill_give_the_state_before(small):
    _work(small)
    small.broker.store.checkpoint()
    small.send("later", delay_ms=10)
    small.broker.cancel_where("orders", key="k20")
    small.advance(20)
    before = small.state()
    small.kill_and_open()
    assert small.state() == before


@pytest.mark.parametrize("name", ["index", "timer", "index/entries", "index/queues", "index/find"])
def test_a_deleted_derived_directory_costs_nothing_but_time(small, name):
    _work(small)
    before = small.state()
    small.kill()
    if name in ("index/entries", "index/queues"):
        # The checkpoint relies on these; a command that deletes them deletes it too (`tidemill rebuild`).
        for path in (small.directory / "index").glob("checkpoint.*"):
            path.unlink()
    small.delete(name)
    small.open()
    assert small.state() == before
    small.broker.topics.change("orders", is_paused=False, release_rate_max=0)
    small.advance(90_000_000)
    assert small.broker.status().pending == 0


def test_a_deleted_index_with_a_checkpoint_before_gives_the_state_before(small):
    _work(small)
    small.broker.store.checkpoint()
    small.send("later", delay_ms=10)
    before = small.state()
    small.close()
    small.delete("index")
    small.open()
    assert small.state() == before


def test_a_torn_frame_at_the_tail_is_cut_and_what_was_acknowledged_stays(small):
    small.send("orders", b"safe", delay_ms=60_000)
    before = small.state()
    end = small.log_end
    small.kill()
    with (small.directory / "log" / f"{0:020d}.log").open("r+b") as file:
        file.seek(end)
        file.write(b"TMFR" + b"\x02\x01" + bytes(2) + b"\xff\x00\x00\x00garbage")
    small.open()
    assert small.state() == before
    small.send("orders", b"next", delay_ms=60_000)
    assert small.log_end > end


def test_a_corrupt_frame_in_the_middle_stops_with_its_offset_and_changes_nothing(small, tmp_path):
    small.send("orders", b"first", delay_ms=60_000)
    offset = small.log_end
    small.send("orders", b"second", delay_ms=60_000)
    small.send("orders", b"third", delay_ms=60_000)
    small.kill()
    path = small.directory / "log" / f"{0:020d}.log"
    whole = path.read_bytes()
    path.write_bytes(whole[: offset + 60] + bytes([whole[offset + 60] ^ 1]) + whole[offset + 61 :])
    broken = path.read_bytes()
    with pytest.raises(CorruptionError, match=str(offset)):
        small.open()
    assert path.read_bytes() == broken
    path.write_bytes(whole)
    small.open()
    assert len(small.broker.views.pending()) == 3


def test_a_log_without_its_identity_is_refused(small):
    small.send("orders", delay_ms=5)
    small.close()
    kept = {path: path.read_bytes() for path in small.directory.glob("identity.*")}
    for path in kept:
        path.unlink()
    with pytest.raises(StorageError, match="identity"):
        small.open()
    for path, content in kept.items():
        path.write_bytes(content)
    small.open()


def test_the_answers_after_a_kill_are_the_answers_before(small):
    _work(small)
    handles = [pending.handle for pending in small.broker.views.pending(limit=1_000)]
    small.kill_and_open()
    assert set(small.broker.cancel(handles)) == {"cancelled"}
    small.kill_and_open()
    assert set(small.broker.cancel(handles)) == {"already-cancelled"}


def test_progress_is_reported_while_the_log_is_read(small):
    for i in range(50):
        small.send("orders", b"%d" % i, delay_ms=100_000)
    small.kill()
    seen: list[tuple[int, int]] = []
    from tidemill.broker.broker import Broker, Sizes

    broker = Broker(
        small.directory,
        small.settings,
        clock=small.clock,
        disk=small.disk,
        has_threads=False,
        sizes=Sizes(store=small.store_settings),
        on_progress=lambda done, size: seen.append((done, size)),
    )
    broker.close()
    small.open()
    assert len(seen) >= 50
    assert all(0 <= done <= size for done, size in seen)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("at", [4, 45])
def test_a_damaged_first_frame_is_called_damage_and_names_its_file(small, has_index, at):
    _work(small)
    small.close()
    if not has_index:
        small.delete("index")
    (path,) = [p for p in (small.directory / "log").glob("*.log") if int(p.stem) == 0]
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
    with pytest.raises(
        CorruptionError, match=rf"{path.name}: the frame at offset 0 does not read back"
    ) as said:
        small.open()
    assert "Nothing was changed. Restore" in str(said.value)
    assert "missing" not in str(said.value)
    path.write_bytes(whole)
    small.open()
