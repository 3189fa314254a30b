"""What a send costs, in function calls: nothing for an absent column, and none for each row of a table."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tidemill.broker.broker import Broker
from tidemill.core.model import Draft
from tidemill.core.send_batch import decode_columns, encode_drafts
from tidemill.server.send_batch_service import SendBatchService


def _calls(act: Callable[[], Any]) -> int:
    """How many functions are called, those written in C among them."""
    count = 0

    def note(_: Any, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count


def _drafts(first: int, count: int, delay_ms: int | None) -> list[Draft]:
    return [Draft("orders", b"x" * 100, delay_ms=delay_ms, id=f"{first + n:024X}") for n in range(count)]


# Calls before all sends took one way: through the columns of a request, and through `Broker.send`.
_MOST = {
    (1, 3_600_000): (374, 412),
    (1, 5_000): (418, 450),
    (1, None): (433, 434),
    (16, 3_600_000): (397, 1413),
    (16, 5_000): (456, 1541),
    (16, None): (612, 1516),
}
_YEAR_2000_MS = 946_684_800_000
_ROUNDS = 6  # the least of these: now and then a file is extended, or an index is sorted


@pytest.fixture
def broker(tmp_path):
    with Broker(tmp_path / "data", has_threads=False) as broker:
        broker.send(_drafts(0, 1, 60_000))
        yield broker


@pytest.mark.parametrize(("count", "delay_ms"), _MOST)
def test_a_plain_send_calls_no_more_functions_than_it_did(broker, count, delay_ms) -> None:
    service = SendBatchService(broker)
    columns, drafts = [], []
    for number in range(1, _ROUNDS + 1):
        content = encode_drafts(_drafts(number << 20, count, delay_ms))
        columns.append(_calls(lambda c=content: service.encoded(broker.send_columns([decode_columns(c)])[0])))
        sent = _drafts((number << 20) + (1 << 10), count, delay_ms)
        drafts.append(_calls(lambda d=sent: broker.send(d)))
    most = _MOST[count, delay_ms]
    assert min(columns) <= most[0]
    assert min(drafts) <= most[1]


@pytest.mark.parametrize("is_once", [False, True], ids=["by id", "once"])
def test_a_table_that_is_sent_again_is_compared_as_columns(broker, is_once) -> None:
    """No function is called for each row, though every row repeats one that is stored."""
    count = 4000
    rows = {"id": [f"row-{n}" for n in range(count)], "key": [f"key-{n}" for n in range(count)]}
    rows |= {"body": [b"x"] * count, "deliver_at": [2 * _YEAR_2000_MS] * count, "once": [is_once] * count}
    table = pa.table(rows)
    assert not broker.send_table(table, topic="orders").is_repeat.any()
    again = []
    calls = _calls(lambda: again.append(broker.send_table(table, topic="orders")))
    assert again[0].is_repeat.all()
    assert calls < count
