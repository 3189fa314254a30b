"""Messages whose bytes in the log of a running broker are damaged: stepped over and reported."""

from __future__ import annotations

import logging

import pytest

from helpers.log_damage import damage_frame, damage_message, place_in_queue, place_of_seq
from helpers.small_broker import RETENTION_MS, START_MS, SmallBroker
from tidemill.broker.query.table_schemas import Wanted
from tidemill.core.errors import DamagedFrameError
from tidemill.core.limits import KIB
from tidemill.core.model import CancelAnswer, Draft, Handle, Once
from tidemill.store.damaged_messages import damage_counts, damaged_messages

HOUR_MS = 3_600_000


@pytest.fixture
def small(tmp_path):
    small = SmallBroker(tmp_path / "data", queues_per_topic=1)
    yield small
    small.close()


def received(small, topic="t", group="g", **how):
    return [d.message.body for d in small.broker.receive(topic, group, **how)]


def untimed(small, count, **fields):
    for i in range(count):
        small.send("t", b"%03d" % i, **fields)


def damage_queued(small, offset, **how):
    damage_frame(small, place_in_queue(small, "t", 0, offset) >> 16, **how)


def damaged_offsets(small):
    return [m.offset for m in damaged_messages(small.broker.store)]


def test_receive_steps_over_a_damaged_message_for_good_and_reports_it_once(small, caplog):
    untimed(small, 5)
    damage_queued(small, 2)
    with caplog.at_level(logging.ERROR):
        assert received(small) == [b"000", b"001", b"003", b"004"]
        assert received(small, group="other") == [b"000", b"001", b"003", b"004"]
    (record,) = [r for r in caplog.records if "is damaged" in r.getMessage()]
    assert "the frame at offset" in record.getMessage() and ".log" in record.getMessage()
    progress = small.broker.store.consumers.state.progress((1, 1, 0))
    assert progress.next_offset == 5 and 2 not in progress.taken
    assert damaged_offsets(small) == [2]


def test_find_knows_the_id_of_a_message_that_was_damaged_while_the_broker_was_stopped(small):
    receipt = small.send("t", b"x", delay_ms=HOUR_MS)
    small.send("t", b"y", delay_ms=HOUR_MS)
    damage_message(small, 0)
    small.reopen()
    assert small.broker.views.messages.story("t", receipt.id).is_damaged
    by_id_alone = Handle(small.broker.id, "t", receipt.id, 1)
    assert small.broker.cancel([by_id_alone]) == [CancelAnswer.CANCELLED]


def test_what_is_known_to_be_damaged_stays_in_the_find_index_over_a_restart(small):
    small.send("t", b"x", id="mine", keys=("k",))
    small.send("t", b"y")
    place = place_in_queue(small, "t", 0, 0)
    damage_frame(small, place >> 16)
    assert len(small.broker.views.find("t", "k")) == 1
    small.reopen()
    assert len(small.broker.views.find("t", "k")) == 1
    assert small.send("t", b"x", id="mine").is_repeat


def test_it_stays_stepped_over_after_a_restart(small):
    untimed(small, 5)
    damage_queued(small, 2)
    assert len(received(small, invisible_ms=1)) == 4
    small.reopen()
    small.clock.advance(10)
    assert received(small) == [b"000", b"001", b"003", b"004"]
    assert 2 not in small.broker.store.consumers.state.progress((1, 1, 0)).taken


@pytest.mark.parametrize("at", [0, 4, 9, 12, 17, 26, 40, 60])
def test_damage_anywhere_in_a_frame_is_found(small, at):
    untimed(small, 3)
    damage_queued(small, 1, at=at, content=b"\xff")
    assert received(small) == [b"000", b"002"]


def test_a_frame_in_the_place_of_another_is_damage(small):
    untimed(small, 3)
    log = small.broker.store.log
    first, second = (place_in_queue(small, "t", 0, i) >> 16 for i in (0, 1))
    size = log.frame(first).end - first
    start = log.segment_starts()[-1]
    with (small.directory / "log" / f"{start:020d}.log").open("r+b") as file:
        file.seek(first - start)
        content = file.read(size)
        file.seek(second - start)
        file.write(content)
    assert received(small) == [b"000", b"002"]


def test_bytes_read_before_are_not_served_again_when_they_are_overwritten_in_a_large_frame(small, tmp_path):
    large = bytes(100 * KIB)
    big = SmallBroker(tmp_path / "big", queues_per_topic=1)
    big.send("t", large)
    assert [d.message.body for d in big.broker.receive("t", "g")] == [large]
    damage_frame(big, place_in_queue(big, "t", 0, 0) >> 16)
    big.broker.store.log.forget_verified()  # as upkeep does every minute
    assert big.broker.receive("t", "other") == []
    big.close()


def test_a_large_frame_is_not_verified_for_every_receive(small, monkeypatch):
    small.broker.send([Draft("t", bytes(2000)) for _ in range(60)])
    verified = []
    original = __import__("zlib").crc32
    monkeypatch.setattr(
        "tidemill.log.frame.zlib.crc32",
        lambda data, *rest: verified.append(len(data)) or original(data, *rest),
    )
    for _ in range(20):
        assert len(small.broker.receive("t", "g", count=3)) == 3
    assert sum(size > 64 * KIB for size in verified) == 1


def test_a_fifo_queue_goes_on_behind_a_damaged_message(small):
    small.broker.receiver.set_group("g", is_fifo=True)
    untimed(small, 4, message_group="a")
    damage_queued(small, 1)
    (first,) = small.broker.receive("t", "g", count=1, one_per_message_group=True)
    small.broker.ack([first.ack_token])
    (second,) = small.broker.receive("t", "g", count=1, one_per_message_group=True)
    assert second.message.body == b"002"


def test_order_waits_for_the_lease_of_a_message_that_is_damaged_while_it_is_out(small):
    small.broker.receiver.set_group("g", is_fifo=True)
    untimed(small, 3, message_group="a")
    assert received(small, count=1, invisible_ms=1000) == [b"000"]
    damage_queued(small, 0)
    small.broker.store._sections.clear()
    assert received(small) == []
    small.clock.advance(1001)
    assert received(small) == [b"001", b"002"]


def test_a_damaged_message_that_is_sent_back_or_forwarded_is_refused_not_moved(small):
    untimed(small, 2)
    one, two = small.broker.receive("t", "g", invisible_ms=1000)
    for offset in (0, 1):
        damage_queued(small, offset)
    small.broker.store._sections.clear()
    assert small.broker.send_back([one.ack_token])[0].answer.value == "invalid"
    assert small.broker.dead_letter([two.ack_token])[0] is False
    assert small.broker.ack([one.ack_token]) == [True]
    small.clock.advance(1001)
    assert received(small) == []


def test_a_pending_message_is_released_by_reference_and_stepped_over(small):
    handles = [small.send("t", b"%d" % i, delay_ms=HOUR_MS).handle for i in range(3)]
    damage_message(small, handles[1].seq)
    assert damage_counts(small.broker.store).frames == 0  # no reader has read it
    small.advance(HOUR_MS)
    assert small.broker.status().pending == 0
    assert received(small) == [b"0", b"2"]
    (message,) = damaged_messages(small.broker.store)
    assert (message.state, message.seq, message.deliver_at_ms) == ("released", 1, START_MS + HOUR_MS)
    assert (message.offset, message.released_at_ms) == (1, START_MS + HOUR_MS)


def test_pending_shows_it_with_a_handle_that_cancels_it(small):
    small.send("t", b"x", delay_ms=HOUR_MS, keys=("k",), id="named")
    damage_message(small, 0)
    (listed,) = small.broker.views.pending()
    assert (listed.is_damaged, listed.id, listed.keys) == (True, "", ())
    assert listed.deliver_at_ms == START_MS + HOUR_MS
    assert damage_counts(small.broker.store).pending == 1
    assert small.broker.cancel([Handle.parse(str(listed.handle))]) == [CancelAnswer.CANCELLED]
    counts = damage_counts(small.broker.store)
    assert (counts.frames, counts.messages, counts.pending) == (1, 0, 0)


def test_a_handle_without_an_id_names_nothing_of_another_topic(small):
    small.send("t", b"x", delay_ms=HOUR_MS)
    small.send("other", b"x")
    assert small.broker.cancel([Handle(small.broker.id, "other", "", 0)]) == [CancelAnswer.UNKNOWN]


def test_its_own_handle_its_key_and_its_range_cancel_it(small):
    one, two, three = (small.send("t", b"x", delay_ms=HOUR_MS, keys=(f"k{i}",)) for i in range(3))
    for receipt in (one, two, three):
        damage_message(small, receipt.handle.seq)
    assert small.broker.cancel([one.handle]) == [CancelAnswer.CANCELLED]
    assert small.broker.cancel_where("t", key="k1") == 1
    assert small.broker.cancel_where("t", from_ms=0, to_ms=START_MS * 2) == 1


def test_find_shows_a_damaged_message_by_key_timed_or_not(small):
    small.send("t", b"timed", delay_ms=HOUR_MS, keys=("k",))
    small.send("t", b"at once", keys=("k",))
    damage_message(small, 0)
    damage_queued(small, 0)
    found = sorted(small.broker.views.find("t", "k"), key=lambda f: f.state)
    assert [(f.is_damaged, f.state, f.offset, f.message.keys) for f in found] == [
        (True, "pending", None, ("k",)),
        (True, "released", 0, ("k",)),
    ]
    assert small.broker.views.find("t", "not it") == []


def test_the_history_of_a_damaged_message_is_shown_as_far_as_it_is_known(small):
    receipt = small.send("t", b"x", delay_ms=HOUR_MS)
    damage_message(small, 0)
    story = small.broker.views.messages.story("t", receipt.id)
    assert story.is_damaged and story.state == "pending" and story.message.body == b""
    assert [(e.what, e.deliver_at_ms) for e in story.history] == [("stored", START_MS + HOUR_MS)]
    small.broker.cancel([receipt.handle])
    story = small.broker.views.messages.story("t", receipt.id)
    assert story.history[-1].what == "cancelled" and story.history[-1].at_ms == START_MS


def test_a_reschedule_of_it_says_so_and_moves_its_neighbours(small):
    handles = [small.send("t", b"%d" % i, delay_ms=HOUR_MS, keys=("k",)).handle for i in range(3)]
    damage_message(small, 1)
    answers = small.broker.reschedule(handles, by_ms=1000)
    assert [a.answer for a in answers] == [None, CancelAnswer.DAMAGED, None]
    assert small.broker.reschedule_where("t", key="k", by_ms=1000) == 2
    assert small.broker.reschedule_where("t", from_ms=0, to_ms=START_MS * 2, by_ms=1000) == 2
    small.advance(HOUR_MS)
    assert small.broker.status().pending == 2
    small.advance(3000)
    assert received(small) == [b"0", b"2"]


def test_a_send_once_does_not_wait_behind_a_damaged_message(small):
    small.send("t", b"old", delay_ms=HOUR_MS, keys=("k",))
    damage_message(small, 0)
    receipt = small.send("t", b"new", delay_ms=HOUR_MS, keys=("k",), once=Once.REPLACE)
    assert not receipt.is_repeat
    small.advance(HOUR_MS)
    assert received(small) == [b"new"]


@pytest.mark.parametrize("fields", [{}, {"delay_ms": HOUR_MS}])
def test_a_repeated_send_of_a_damaged_message_is_still_a_repeat_for_an_hour(small, fields):
    small.send("t", b"x", id="mine", **fields)
    small.send("t", b"y")
    damage_frame(small, place_of_seq(small, 0) >> 16 if fields else place_in_queue(small, "t", 0, 0) >> 16)
    assert small.send("t", b"x", id="mine", **fields).is_repeat
    small.clock.advance(HOUR_MS + 1)
    assert not small.send("t", b"x", id="mine", **fields).is_repeat


def test_tables_have_nulls_where_the_bytes_are_damaged(small):
    small.send("t", b"pending", delay_ms=HOUR_MS, keys=("k",))
    untimed(small, 3)
    damage_message(small, 0)
    damage_queued(small, 1)
    (pending,) = small.broker.tables.read(Wanted("pending"))
    assert pending.column("id").to_pylist() == [None]
    assert [at.timestamp() for at in pending.column("deliver_at").to_pylist()] == [
        (START_MS + HOUR_MS) / 1000
    ]
    (messages,) = small.broker.tables.read(Wanted("messages", topic="t"))
    assert messages.column("body").to_pylist() == [b"000", None, b"002"]


def test_queues_can_be_looked_at(small):
    untimed(small, 2)
    damage_queued(small, 0)
    looked = small.broker.views.read("t", 0, 0, 10)
    assert [(q.offset, q.is_damaged, q.message.body) for q in looked] == [(0, True, b""), (1, False, b"001")]


def test_transactions_with_a_damaged_half_can_be_rolled_back(small):
    small.broker.transactions.begin([Draft("t", b"x", id="one"), Draft("t", b"y", id="two")])
    half = small.broker.transactions.halves()[0]
    damage_frame(small, half.place >> 16)
    assert small.broker.transactions.read(half) is None
    with pytest.raises(DamagedFrameError, match="is damaged"):
        small.broker.transactions.commit("t", "one")
    assert {m.state for m in damaged_messages(small.broker.store)} == {"open"}
    small.broker.transactions.roll_back("t", "one")
    small.broker.transactions.roll_back("t", "two")
    assert list(damaged_messages(small.broker.store)) == []


def test_retention_keeps_the_segment_while_a_damaged_message_waits(small, caplog):
    handle = small.send("t", b"damaged", delay_ms=40 * RETENTION_MS).handle
    small.send("t", b"whole", delay_ms=40 * RETENTION_MS)
    damage_message(small, handle.seq)
    small.fill_segment()
    small.fill_segment()
    small.clock.advance(RETENTION_MS + 1)
    small.fill_segment()
    small.clock.advance(RETENTION_MS + 1)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            small.broker._maintenance.retain(small.clock.now_ms())
    assert small.broker.store.log.head == 0
    assert len([r for r in caplog.records if "retention stopped" in r.getMessage()]) == 1
    assert small.broker.status().pending == 2
    small.broker.cancel([handle])
    small.broker._maintenance.retain(small.clock.now_ms())
    assert small.broker.store.log.head > 0
    assert list(damaged_messages(small.broker.store)) == []
    small.advance(40 * RETENTION_MS)
    assert received(small) == [b"whole"]


def test_a_damaged_base_frame_is_no_place_to_cut_at(small):
    for i in range(6):
        small.send("t", b"%d" % i, delay_ms=40 * RETENTION_MS)
        small.fill_segment()
    starts = small.broker.store.log.segment_starts()
    for start in (starts[0], starts[2]):
        damage_frame(small, start)
    small.clock.advance(2 * RETENTION_MS)
    small.broker._maintenance.retain(small.clock.now_ms())
    assert small.broker.store.log.head in starts[1:2] + starts[3:]
    assert small.broker.status().pending == 6
    small.advance(40 * RETENTION_MS)
    assert received(small) == [b"%d" % i for i in range(6)]
    small.check()


def test_what_is_released_by_value_with_damaged_bytes_goes_by_reference(small):
    handles = [small.send("t", b"%d" % i, delay_ms=RETENTION_MS * 3 // 4).handle for i in range(3)]
    small.fill_segment()
    damage_message(small, handles[1].seq)
    small.advance(RETENTION_MS * 3 // 4)
    assert small.broker.status().pending == 0
    assert received(small) == [b"0", b"2"]
