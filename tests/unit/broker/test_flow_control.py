"""Flow control of sends: how many may fall due in one tick, and how many bytes may be under way."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from helpers.small_broker import START_MS
from tidemill.core.errors import TooManyRequestsError
from tidemill.core.limits import MIB
from tidemill.core.model import Draft


def _due_at(*delays_ms: int, topic: str = "orders", **fields) -> list[Draft]:
    return [Draft(topic, b"", deliver_at_ms=START_MS + delay, **fields) for delay in delays_ms]


def _table(*delays_ms: int, **columns) -> pa.Table:
    return pa.table({"body": [b""] * len(delays_ms), "deliver_at": START_MS + np.array(delays_ms), **columns})


@pytest.fixture
def limited(make_small):
    return make_small(due_per_tick_max=2)


def test_a_tick_takes_so_many_of_a_topic_and_its_neighbour_as_many_again(limited):
    limited.broker.send(_due_at(60_000, 60_999))
    end = limited.log_end
    with pytest.raises(
        TooManyRequestsError, match=r"topic 'orders' fall due in the 1000 ms from \d+ on .limit 2"
    ):
        limited.broker.send(_due_at(60_500))
    assert limited.log_end == end
    limited.broker.send(_due_at(59_999, 61_000, 59_000, 61_999))
    limited.broker.send(_due_at(60_500, 60_500, topic="other"))
    with pytest.raises(TooManyRequestsError):
        limited.broker.send(_due_at(70_000, 70_001, 70_002))
    assert limited.broker.status().pending == 8


def test_in_a_batch_only_those_over_the_limit_are_refused(limited):
    answers = limited.broker.send_each(_due_at(5_000, 5_100, 5_200, 6_000))
    assert [isinstance(answer, TooManyRequestsError) for answer in answers] == [False, False, True, False]


def test_a_tick_has_room_again_when_its_messages_go(limited):
    receipts = limited.broker.send(_due_at(60_000, 60_001))
    limited.broker.cancel([receipts[0].handle])
    limited.broker.send(_due_at(60_002))
    limited.broker.reschedule([receipts[1].handle], deliver_at_ms=START_MS + 90_000)
    limited.broker.send(_due_at(60_003, 90_001))
    for delay_ms in (60_004, 90_002):
        with pytest.raises(TooManyRequestsError):
            limited.broker.send(_due_at(delay_ms))
    limited.advance(90_500)
    limited.broker.send(_due_at(60_004, 90_002))  # both past, so due now: others than those that went


def test_a_table_over_the_limit_is_refused_whole(limited):
    with pytest.raises(TooManyRequestsError, match="limit 2 a tick"):
        limited.broker.send_table(_table(9_000, 9_100, 7_000, 9_200), topic="orders")
    assert limited.broker.status().pending == 0
    limited.broker.send_table(_table(9_000, 7_000), topic="orders")
    with pytest.raises(TooManyRequestsError):
        limited.broker.send_table(_table(9_100, 9_200), topic="orders", is_whole=False)
    batch = _table(9_100, 9_200).to_batches()[0]
    with pytest.raises(TooManyRequestsError):
        limited.broker.send_table(batch, topic="orders", is_whole=True)
    limited.broker.send_table(_table(9_100, 7_200), topic="orders")
    untimed = pa.table({"body": [b""] * 50})
    limited.broker.send_table(untimed, topic="orders")


def test_a_table_that_is_sent_again_does_not_count_twice(limited):
    table = _table(9_000, 9_001, id=["a", "b"])
    first = limited.broker.send_table(table, topic="orders")
    assert limited.broker.send_table(table, topic="orders").seqs.tolist() == first.seqs.tolist()


@pytest.mark.parametrize("crash", [True, False])
def test_what_waits_is_counted_again_when_the_broker_opens(limited, crash):
    receipts = limited.broker.send(_due_at(60_000, 60_001, 80_000))
    limited.broker.cancel([receipts[2].handle])
    limited.kill_and_open() if crash else limited.reopen()
    with pytest.raises(TooManyRequestsError):
        limited.broker.send(_due_at(60_500))
    limited.broker.send(_due_at(80_000, 80_001))


def test_a_finer_tick_is_counted_finer(make_small):
    small = make_small(due_per_tick_max=1, tick_ms=100)
    small.broker.send(_due_at(60_000, 60_100))
    with pytest.raises(TooManyRequestsError, match="100 ms from"):
        small.broker.send(_due_at(60_199))


def test_tables_and_transactions_wait_like_sends_while_too_much_is_under_way(make_small):
    small = make_small(in_flight_bytes_max=MIB)
    with small.broker._sender.in_flight.hold(MIB):
        refused = (
            lambda: small.broker.send([Draft("t", b"x")]),
            lambda: small.broker.send_table(pa.table({"body": [b"x"]}), topic="t"),
            lambda: small.broker.send_table(pa.record_batch({"body": [b"x"]}), topic="t", is_whole=True),
            lambda: small.broker.transactions.begin([Draft("t", b"x", id="a")]),
        )
        for act in refused:
            with pytest.raises(TooManyRequestsError, match="in-flight limit reached"):
                act()
    small.broker.send_table(pa.table({"body": [bytes(3 * MIB)]}), topic="t")  # alone, it is let in
    assert small.broker.status().in_flight_bytes == 0
