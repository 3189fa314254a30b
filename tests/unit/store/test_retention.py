"""Retention on a whole store: survivors re-enter, the head is cut, and nothing shifts."""

from __future__ import annotations

import pytest

from helpers.small_broker import RETENTION_MS, START_MS, SmallBroker
from tidemill.core.model import CancelAnswer, Draft, TopicType
from tidemill.store.formats.frames import Kind
from tidemill.store.formats.new_messages import new_messages

FAR_MS = 100 * RETENTION_MS


def _age(small: SmallBroker, segments: int = 3) -> None:
    """Fill segments with chaff and let them grow older than the retention."""
    for _ in range(segments):
        small.fill_segment()
    small.clock.advance(RETENTION_MS + 1)
    small.send("filler", bytes(1000))


def _cut(small: SmallBroker) -> int:
    """Apply retention; how far the head moved."""
    before = small.broker.store.log.head
    small.broker._maintenance.retain(small.clock.now_ms())
    return small.broker.store.log.head - before


def test_survivors_re_enter_and_the_head_goes(small):
    keep = [small.send("orders", b"keep%d" % i, delay_ms=FAR_MS + i, keys=(f"k{i}",)) for i in range(5)]
    _age(small)
    assert _cut(small) > 0
    pending = small.broker.views.pending()
    assert [(p.id, p.deliver_at_ms) for p in pending] == [(r.id, r.deliver_at_ms) for r in keep]
    assert all(p.seq > r.handle.seq for p, r in zip(pending, keep, strict=True))
    assert small.broker.status().pending == 5


def test_nothing_is_cut_while_more_than_half_is_alive(small):
    for i in range(30):
        small.send("orders", bytes(1000), delay_ms=FAR_MS + i)
    small.clock.advance(RETENTION_MS + 1)
    small.send("orders", b"", delay_ms=FAR_MS)
    assert len(small.broker.store.log.segment_starts()) > 1
    assert _cut(small) == 0


@pytest.mark.parametrize("how", ["kill", "close", "index", "timer", "checkpoint", "old checkpoint"])
def test_the_state_after_a_cut_survives_opening_again(small, how):
    cancelled = small.send("orders", b"paid", delay_ms=FAR_MS)
    released = small.send("orders", b"soon", delay_ms=1_000)
    for i in range(12):
        small.send("orders", b"keep%d" % i, delay_ms=FAR_MS + i, keys=(f"k{i}",))
    small.broker.topics.create("doomed")
    small.send("doomed", delay_ms=FAR_MS)
    small.fill_segment()
    small.broker.cancel([cancelled.handle])
    small.broker.topics.delete("doomed", is_forced=True)
    small.advance(2_000)
    assert small.bodies("orders") == [b"soon"]
    _age(small)
    if how == "old checkpoint":
        small.broker.store.checkpoint()
    assert _cut(small) > 0
    small.send("orders", b"more", delay_ms=FAR_MS)
    small.check()
    before = small.state()
    if how == "checkpoint":
        small.broker.store.checkpoint()
    small.close() if how == "close" else small.kill()
    if how in ("index", "timer"):
        small.delete(how)
    small.open()
    assert small.state() == before
    assert small.broker.status().pending == 13
    assert small.broker.cancel([cancelled.handle, released.handle]) == [CancelAnswer.UNKNOWN] * 2


def test_what_was_cancelled_stays_counted_when_only_the_record_of_it_is_left(small):
    paid = [small.send("orders", b"paid", delay_ms=FAR_MS) for _ in range(3)]
    small.broker.topics.create("doomed")
    small.send("doomed", delay_ms=FAR_MS)
    _age(small)
    small.broker.cancel([receipt.handle for receipt in paid])
    small.broker.topics.delete("doomed", is_forced=True)
    assert _cut(small) > 0
    before = small.state()
    assert small.broker.status().cancelled == 4
    small.kill()
    small.delete("index")
    small.open()
    assert small.state() == before


def test_queue_offsets_never_shift(small):
    first = [small.send("filler", b"%d" % i) for i in range(5)]
    assert len(first) == 5
    _age(small)
    ends = {topic.name: topic.visible for topic in small.broker.views.topics()}
    assert _cut(small) > 0
    assert {topic.name: topic.visible for topic in small.broker.views.topics()} == ends
    small.kill()
    small.delete("index")
    small.open()
    assert {topic.name: topic.visible for topic in small.broker.views.topics()} == ends
    small.send("filler", b"next")
    newest = max(small.in_topic("filler"), key=lambda m: (m.released_at_ms, m.offset))
    assert newest.body == b"next"
    assert newest.offset in {view // 2 for view in (ends["filler"], ends["filler"] + 1)}


def test_reading_below_the_cut_steps_over_what_expired(small):
    for i in range(200):
        small.send("filler", b"%d" % i)
    _age(small)
    total = len(small.in_topic("filler"))
    assert _cut(small) > 0
    left = small.in_topic("filler")
    assert 0 < len(left) < total
    assert small.broker.views.read("filler", 0, 0, 3) == []
    bodies = {m.body for m in left}
    assert {d.message.body for d in small.broker.receive("filler", "late", count=1_000)} == bodies


def test_a_moved_message_is_found_by_its_first_handle_its_id_and_its_key(small):
    receipt = small.send("orders", b"keep", delay_ms=FAR_MS, id="order-1", keys=("k",))
    _age(small)
    assert _cut(small) > 0
    store, topic = small.broker.store, small.broker.topics.require("orders")
    (seq,) = store.seqs_with_id(topic.id, "order-1")
    assert seq != receipt.handle.seq
    assert store.seqs_with_key(topic.id, "k") == [seq]
    (answer,) = small.broker.reschedule([receipt.handle], by_ms=5)
    assert answer.deliver_at_ms == receipt.deliver_at_ms + 5
    assert small.broker.cancel([receipt.handle]) == [CancelAnswer.CANCELLED]
    assert small.broker.cancel([receipt.handle]) == [CancelAnswer.ALREADY_CANCELLED]


def test_a_survivor_is_released_once_at_its_time(small):
    receipt = small.send("orders", b"keep", delay_ms=RETENTION_MS + 400_000)
    _age(small)
    assert _cut(small) > 0
    small.broker.advance_to(receipt.deliver_at_ms - 1)
    assert small.bodies("orders") == []
    small.advance(1)
    assert small.bodies("orders") == [b"keep"]
    small.advance(FAR_MS)
    assert small.broker.status().released == 1


def test_a_survivor_due_within_the_lead_is_released_once_at_its_time(small):
    receipt = small.send("orders", b"near", delay_ms=RETENTION_MS + 20_000)
    _age(small)
    assert receipt.deliver_at_ms - small.clock.now_ms() < small.settings.lead_ms
    assert _cut(small) > 0
    small.broker.advance_to(receipt.deliver_at_ms)
    assert [m.released_at_ms for m in small.in_topic("orders")] == [receipt.deliver_at_ms]


def test_a_message_released_by_value_is_readable_after_its_first_bytes_are_cut(small):
    receipt = small.send("orders", b"old bytes", delay_ms=RETENTION_MS * 3 // 4, keys=("k",), tag="t")
    for _ in range(3):
        small.fill_segment()
    place = int(small.broker.store.entry(receipt.handle.seq)["place"])
    small.advance(RETENTION_MS * 3 // 4)
    small.fill_segment()
    small.clock.advance(RETENTION_MS // 4 + 1)
    small.send("filler")
    assert _cut(small) > 0
    assert small.broker.store.is_expired(place)
    (delivery,) = small.broker.receive("orders", "g")
    assert (delivery.message.body, delivery.message.keys, delivery.message.tag) == (b"old bytes", ("k",), "t")
    assert delivery.message.deliver_at_ms == receipt.deliver_at_ms


def test_the_head_is_not_cut_above_a_message_in_a_consumers_hands(small):
    small.send("work", b"in hand")
    _age(small)
    (delivery,) = small.broker.receive("work", "g", invisible_ms=5_000)
    assert _cut(small) == 0
    small.broker.ack([delivery.ack_token])
    assert _cut(small) > 0


def test_a_lease_that_is_extended_after_the_cut_harms_no_other(small):
    for i in range(80):
        small.send("work", b"%d" % i)
    deliveries = small.broker.receive("work", "g", count=80, invisible_ms=1_000)
    _age(small)
    assert _cut(small) > 0
    small.broker.change_invisibility([d.ack_token for d in deliveries], 60_000)
    _age(small)
    _cut(small)
    small.clock.advance(60_001)
    assert small.broker.receive("work", "g") == []


def test_an_open_transaction_survives_the_cut_and_can_still_be_ended(small):
    small.broker.topics.create("tx")
    store = small.broker.store
    small.send("tx", b"body of the half", id="h1")
    half = small.broker.views.read("tx", 0, 0, 9)[0].message
    store.writer.put_halves([half], small.clock.now_ms())
    _age(small)
    assert _cut(small) > 0
    before = small.state()
    small.kill()
    small.delete("index")
    small.open()
    assert small.state() == before
    (left,) = small.broker.store.open_transactions.values()
    assert small.broker.store.message(left.place).body == b"body of the half"
    store = small.broker.store
    message = new_messages([store.message(left.place)])
    store.finish(store.writer.end_half(left, message, small.clock.now_ms()))
    assert small.broker.store.open_transactions == {}
    assert small.bodies("tx")[-1:] == [b"body of the half"]


def test_one_message_waits_ten_years_under_a_steady_stream_on_a_bounded_disk(make_aged):
    small = make_aged(retention_ms=86_400_000)
    ten_years_ms = 10 * 365 * 86_400_000
    receipt = small.send("orders", b"patient", delay_ms=ten_years_ms)
    allocated = []
    for _ in range(119):
        small.clock.advance(ten_years_ms // 120)
        small.broker.send([Draft("filler", bytes(900)) for _ in range(20)])
        small.broker._maintenance.step(small.clock.now_ms())
        small.broker._maintenance.step(small.clock.now_ms())
        allocated.append(small.broker.store.log.written_end - small.broker.store.log.head)
    assert max(allocated) < 5 * small.store_settings.segment_bytes
    small.broker.advance_to(receipt.deliver_at_ms - 1)
    assert small.bodies("orders") == []
    small.advance(1)
    assert small.bodies("orders") == [b"patient"]
    kinds = {
        frame.kind for frame in small.broker.store.log.frames(small.broker.store.log.head, small.log_end)
    }
    assert Kind.RELEASE in kinds


@pytest.fixture
def make_aged(tmp_path):
    made = []

    def make(**settings):
        made.append(SmallBroker(tmp_path / "aged", **settings))
        return made[-1]

    yield make
    for small in made:
        small.check()
        small.close()


@pytest.mark.parametrize("group", ["", "one"])
@pytest.mark.parametrize("how", ["go on", "kill", "timer", "index"])
def test_equal_due_times_keep_their_order_of_arrival_through_moves(small, group, how):
    broker, due_ms = small.broker, START_MS + FAR_MS
    broker.topics.create("orders", TopicType.MIXED, 1)

    def send(*bodies: bytes) -> list:
        drafts = [Draft("orders", body, deliver_at_ms=due_ms, message_group=group) for body in bodies]
        return broker.send(drafts)

    pushed, *_ = send(b"pushed on", b"1", b"2")
    _age(small)
    send(b"3", b"4")
    assert _cut(small) > 0  # moves 1 and 2 behind 3 and 4
    send(b"5")
    _age(small)
    broker = small.broker
    send(b"6")
    assert _cut(small) > 0  # moves all but 6, some for the second time
    send(b"7")
    broker.reschedule([pushed.handle], deliver_at_ms=due_ms)  # an arrival of its own
    if how == "kill":
        small.kill_and_open()
    elif how != "go on":
        small.kill()
        small.delete(how)
        small.open()
    small.advance(due_ms - small.clock.now_ms())
    assert small.bodies("orders") == [*(b"%d" % i for i in range(1, 8)), b"pushed on"]
