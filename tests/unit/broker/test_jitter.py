"""Jitter: a due time that is moved later by chance, once for each message, whatever way it is sent."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from helpers.small_broker import START_MS
from tidemill.broker.send.jitter import drawn_each, drawn_ms
from tidemill.core.errors import IllegalDelayError, RequestError, TooManyRequestsError
from tidemill.core.limits import DAY_MS
from tidemill.core.model import Draft, Once, SendResult
from tidemill.core.send_batch import decode_columns, encode_drafts

_HOUR_MS = 3_600_000


def _later(answers, asked_ms: int) -> list[int]:
    return [answer.deliver_at_ms - asked_ms for answer in answers]


@pytest.mark.parametrize("jitter_ms", [1, 7, 1_000, 30_000, 400 * DAY_MS])
@pytest.mark.parametrize("name", ["order-{}", "{:024X}", "{}", "job/k{}@1800000000000"])
def test_the_draw_is_uniform_and_covers_both_ends(jitter_ms: int, name: str) -> None:
    count, bins = 20_000, min(jitter_ms + 1, 50)
    ids = [name.format(number).encode() for number in range(count)]
    drawn = drawn_each(ids, np.full(count, jitter_ms))
    assert drawn.min() >= 0 and drawn.max() <= jitter_ms
    if jitter_ms <= 1_000:
        assert (drawn.min(), drawn.max()) == (0, jitter_ms)
    expected = np.diff(np.linspace(0, jitter_ms + 1, bins + 1).astype(np.int64)) * count / (jitter_ms + 1)
    found = np.histogram(drawn, np.linspace(0, jitter_ms + 1, bins + 1).astype(np.int64))[0]
    assert ((found - expected) ** 2 / expected).sum() < 2 * bins + 30  # chi-squared, about `bins`


def test_one_message_draws_as_many_do() -> None:
    ids = [f"id-{number}" for number in range(100)]
    jitter = np.arange(100) * 37
    alone = [drawn_ms(name, ms) for name, ms in zip(ids, jitter.tolist(), strict=True)]
    assert drawn_each([name.encode() for name in ids], jitter).tolist() == alone
    assert drawn_each(pa.array(ids), jitter).tolist() == alone


def test_rows_without_ids_draw_by_the_ids_that_they_are_given(small) -> None:
    count = 1_000
    table = pa.table({"body": [b""] * count, "delay_ms": [60_000] * count, "jitter_ms": [10_000] * count})
    first, second = (small.broker.send_table(table, topic="orders") for _ in range(2))
    for result in (first, second):
        drawn = result.deliver_at_ms - (START_MS + 60_000)
        assert drawn.tolist() == [drawn_ms(name, 10_000) for name in result.ids.to_pylist()]
        assert len(set(drawn.tolist())) > 900
    assert first.deliver_at_ms.tolist() != second.deliver_at_ms.tolist()


@pytest.mark.parametrize("way", ["single", "columns", "each", "table"])
@pytest.mark.parametrize("time", ["deliver_at_ms", "delay_ms"])
def test_every_way_of_sending_moves_a_message_by_the_same_amount(small, way: str, time: str) -> None:
    small.send("orders", b"so that the topic is there")
    asked_ms = START_MS + _HOUR_MS
    given = {time: asked_ms if time == "deliver_at_ms" else _HOUR_MS}
    drafts = [Draft("orders", b"x", id=f"ID{n}", jitter_ms=30_000, **given) for n in range(40)]
    if way == "single":
        answers = small.broker.send(drafts)
    elif way == "each":
        answers = small.broker.send_each(drafts)
    elif way == "columns":
        (stored,) = small.broker.send_columns([decode_columns(encode_drafts(drafts))])
        assert (stored.due - asked_ms).tolist() == [drawn_ms(d.id, 30_000) for d in drafts]
        return
    else:
        table = pa.table(
            {
                "body": [draft.body for draft in drafts],
                "id": [draft.id for draft in drafts],
                time: [given[time]] * len(drafts),
                "jitter_ms": pa.array([30_000] * len(drafts), pa.duration("ms")),
            }
        )
        receipt = small.broker.send_table(table, topic="orders")
        assert (receipt.deliver_at_ms - asked_ms).tolist() == [drawn_ms(d.id, 30_000) for d in drafts]
        return
    assert _later(answers, asked_ms) == [drawn_ms(draft.id, 30_000) for draft in drafts]


def test_what_is_sent_again_keeps_its_first_time(small) -> None:
    draft = Draft("orders", b"x", delay_ms=60_000, jitter_ms=30_000, id="a", keys=("k",))
    (first,) = small.broker.send([draft])
    small.advance(5_000)
    for answer in (*small.broker.send([draft, draft]), *small.broker.send_each([draft])):
        assert isinstance(answer, SendResult)
        assert answer.is_repeat and answer.deliver_at_ms == first.deliver_at_ms
    small.kill_and_open()
    assert small.broker.send([draft])[0].deliver_at_ms == first.deliver_at_ms


def test_the_same_send_draws_the_same_also_where_the_first_was_not_stored(make_small) -> None:
    draft = Draft("orders", b"x", deliver_at_ms=START_MS + 60_000, jitter_ms=30_000, id="a")
    dues = {make_small().broker.send([draft])[0].deliver_at_ms for _ in range(3)}
    assert len(dues) == 1


def test_it_goes_at_its_time_and_not_before(small) -> None:
    receipts = small.broker.send(
        [Draft("orders", b"%d" % n, delay_ms=10_000, jitter_ms=5_000) for n in range(30)]
    )
    later = _later(receipts, START_MS + 10_000)
    assert len(set(later)) > 20 and min(later) >= 0 and max(later) <= 5_000
    small.advance(10_000 + sorted(later)[14])
    assert len(small.bodies("orders")) == sum(ms <= sorted(later)[14] for ms in later)
    small.advance(5_000)
    assert len(small.bodies("orders")) == 30


def test_replacing_moves_to_the_time_with_its_jitter(small) -> None:
    once = {"keys": ("k",), "once": Once.REPLACE, "jitter_ms": 30_000}
    small.broker.send([Draft("orders", b"x", delay_ms=60_000, id="a", **once)])
    for _ in range(2):  # the second is the first, sent again
        (moved,) = small.broker.send([Draft("orders", b"x", deliver_at_ms=START_MS + 90_000, id="b", **once)])
        assert moved.deliver_at_ms == START_MS + 90_000 + drawn_ms("b", 30_000)


@pytest.mark.parametrize("time", [{"delay_ms": 60_000}, {"deliver_at_ms": START_MS + 65_000}])
def test_the_commit_of_a_transaction_keeps_what_its_half_drew(small, time) -> None:
    draft = Draft("orders", b"x", id="half", jitter_ms=30_000, **time)
    small.broker.transactions.begin([draft])
    small.advance(5_000)
    receipt = small.broker.transactions.commit("orders", "half")
    assert receipt.deliver_at_ms == START_MS + 65_000 + drawn_ms("half", 30_000)


def test_a_tick_is_counted_with_the_jitter(make_small) -> None:
    small = make_small(due_per_tick_max=1)
    with pytest.raises(TooManyRequestsError):
        small.broker.send([Draft("orders", b"", delay_ms=60_000) for _ in range(3)])
    spread = [Draft("orders", b"", delay_ms=60_000, jitter_ms=_HOUR_MS, id=f"{n}") for n in range(3)]
    assert len({r.deliver_at_ms // 1_000 for r in small.broker.send(spread)}) == 3


_WRONG = [
    ({"delay_ms": 5, "jitter_ms": -3}, "jitter -3 ms is not possible; use 0 to 315360000000 ms"),
    ({"jitter_ms": 3}, "jitter 3 ms needs a delay or a delivery time as well"),
    ({"level": 2, "jitter_ms": 3}, "jitter 3 ms is not possible on level 2, whose messages keep their order"),
    (
        {"delay_ms": 5, "jitter_ms": 3, "message_group": "g"},
        "jitter 3 ms is not possible in message group 'g', whose messages keep their order",
    ),
    (
        {"delay_ms": 3649 * DAY_MS, "jitter_ms": 2 * DAY_MS},
        r"a delay of 3649d with a jitter of 2d \(315446400000 ms together\) is beyond the limit of 3650d",
    ),
    ({"delay_ms": 5, "jitter_ms": 1 << 52}, ".* is beyond the limit of 3650d"),
]


@pytest.mark.parametrize(("fields", "words"), _WRONG)
def test_a_jitter_that_cannot_be_is_refused_in_one_line(small, fields, words: str) -> None:
    small.send("orders", b"so that the topic is there")
    wrong = Draft("orders", b"wrong", id="wrong", **fields)
    right = Draft("orders", b"right", id="right", delay_ms=5)
    end = small.log_end
    with pytest.raises(IllegalDelayError, match=words) as said:
        small.broker.send([wrong])
    assert "\n" not in str(said.value)
    with pytest.raises(IllegalDelayError, match=words):
        small.broker.transactions.begin([wrong])
    columns = {name: [None, value] for name, value in fields.items()}
    with pytest.raises(IllegalDelayError, match=f"row 1: {words}"):
        small.broker.send_table(pa.table({"body": [b"", b""], **columns}), topic="orders")
    assert small.log_end == end
    refused, stored = small.broker.send_each([wrong, right])
    assert str(refused) == str(said.value) and isinstance(stored, SendResult)


@pytest.mark.parametrize("jitter", ["30s", 2.5, True, None])
def test_a_jitter_that_is_no_number_is_refused(small, jitter) -> None:
    draft = Draft("orders", b"", delay_ms=5, jitter_ms=jitter, id="a")
    with pytest.raises(RequestError, match="jitter_ms must be a whole number"):
        small.broker.send([draft])
    (answer,) = small.broker.send_each([draft])
    assert isinstance(answer, RequestError)


def test_a_jitter_of_0_is_none(small) -> None:
    drafts = [Draft("orders", b"", jitter_ms=0), Draft("orders", b"", level=1, jitter_ms=0)]
    small.broker.send(drafts)
    table = pa.table({"body": [b"", b""], "delay_ms": [None, 5], "jitter_ms": [0, None]})
    assert small.broker.send_table(table, topic="orders").deliver_at_ms.tolist() == [-1, START_MS + 5]
