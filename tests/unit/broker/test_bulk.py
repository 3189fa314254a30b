"""Bulk sends: whole Arrow tables, with the rules of single sends."""

from __future__ import annotations

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from helpers.small_broker import START_MS
from tidemill.core.errors import (
    BodyTooLargeError,
    DiskFullError,
    IllegalDelayError,
    IllegalGroupError,
    IllegalIdError,
    IllegalKeyError,
    IllegalPropertyError,
    IllegalTagError,
    IllegalTopicError,
    PropertiesTooLargeError,
    RequestError,
    WrongMessageTypeError,
)
from tidemill.core.limits import DAY_MS, FRAME_ROWS_MAX
from tidemill.core.model import CancelAnswer, TopicType

UTC = datetime.UTC


def test_every_column_arrives(small):
    table = pa.table(
        {
            "topic": ["a", "b", "a"],
            "body": [b"1", b"2", b"3"],
            "delay_ms": [5, 6, 7],
            "id": ["x", None, "z"],
            "key": ["k1", "", None],
            "tag": ["t", None, ""],
            "message_group": ["", "g", None],
            "properties": ['{"p":"q"}', "", None],
        }
    )
    receipt = small.broker.send_table(table)
    assert len(receipt) == 3
    assert receipt.deliver_at_ms.tolist() == [START_MS + 5, START_MS + 6, START_MS + 7]
    assert receipt.ids[0].as_py() == "x"
    assert len(receipt.ids[1].as_py()) == 24
    small.advance(10)
    by_body = {d.message.body: d.message for t in "ab" for d in small.broker.receive(t, "g")}
    first, second = by_body[b"1"], by_body[b"2"]
    assert (first.id, first.keys, first.tag, dict(first.properties)) == ("x", ("k1",), "t", {"p": "q"})
    assert (second.keys, second.tag, second.message_group, second.properties) == ((), "", "g", {})
    assert small.broker.views.find("a", "k1")[0].message.body == b"1"


def test_rows_without_a_time_are_not_timed(small):
    due = pa.array([None, START_MS + 50, None], pa.int64())
    receipt = small.broker.send_table(pa.table({"body": ["a", "b", "c"], "deliver_at": due}), topic="t")
    assert receipt.seqs.tolist() == [-1, 0, -1]
    assert receipt.deliver_at_ms.tolist() == [-1, START_MS + 50, -1]
    assert sorted(small.bodies("t")) == [b"a", b"c"]
    (handle,) = receipt.handles()
    assert small.broker.cancel([handle]) == [CancelAnswer.CANCELLED]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Shanghai"])
def test_a_timestamp_means_the_same_moment_in_every_unit_and_zone(small, unit, zone):
    moment = START_MS + 60_000
    scale = {"s": 0.001, "ms": 1, "us": 1_000, "ns": 1_000_000}[unit]
    column = pa.array([int(moment * scale), None], pa.timestamp(unit, zone))
    receipt = small.broker.send_table(pa.table({"body": [b"1", b"2"], "deliver_at": column}), topic="t")
    assert receipt.deliver_at_ms.tolist() == [moment, -1]


@pytest.mark.parametrize(("unit", "part"), [("us", 1), ("us", 999), ("ns", 1), ("ns", 999_999)])
def test_a_part_of_a_millisecond_never_makes_it_early(small, unit, part):
    scale = {"us": 1_000, "ns": 1_000_000}[unit]
    column = pa.array([START_MS * scale + part, -part], pa.timestamp(unit))
    receipt = small.broker.send_table(pa.table({"body": [b"1", b"2"], "deliver_at": column}), topic="t")
    assert receipt.deliver_at_ms.tolist() == [START_MS + 1, 0]


@pytest.mark.parametrize(
    ("unit", "number", "ms"),
    [
        ("s", 3_600, 3_600_000),
        ("ms", 3_600, 3_600),
        ("us", 3_600, 4),
        ("ns", 3_600_000_001, 3_601),
        ("ns", 1, 1),
    ],
)
def test_a_duration_is_a_delay_in_its_own_unit_and_never_cut_short(small, unit, number, ms):
    column = pa.array([number, None], pa.duration(unit))
    receipt = small.broker.send_table(pa.table({"body": [b"1", b"2"], "delay_ms": column}), topic="t")
    assert receipt.deliver_at_ms.tolist() == [START_MS + ms, -1]


@pytest.mark.parametrize(
    ("unit", "number", "ms"), [("us", -3_600, -3), ("s", -(1 << 63), -((1 << 52) * 1000))]
)
def test_a_negative_duration_is_refused_with_its_row(small, unit, number, ms):
    column = pa.array([5, number], pa.duration(unit))
    with pytest.raises(IllegalDelayError, match=f"row 1: delay_ms {ms} is negative; use 0 or more"):
        small.broker.send_table(pa.table({"body": [b"1", b"2"], "delay_ms": column}), topic="t")
    assert not list(small.broker.store.topics)


_MIDNIGHT_MS = START_MS // DAY_MS * DAY_MS + DAY_MS
_MIDNIGHT = datetime.datetime.fromtimestamp(_MIDNIGHT_MS / 1000, UTC).date()


@pytest.mark.parametrize(
    ("name", "column", "ms"),
    [
        ("deliver_at", pa.array([_MIDNIGHT], pa.date32()), _MIDNIGHT_MS),
        ("deliver_at", pa.array([_MIDNIGHT], pa.date64()), _MIDNIGHT_MS),
        ("deliver_at", pa.array([_MIDNIGHT_MS * 1000], pa.timestamp("us")).dictionary_encode(), _MIDNIGHT_MS),
        ("deliver_at_ms", pa.array([START_MS + 0.5]), START_MS + 1),
        ("delay_ms", pa.array([1.25]), START_MS + 2),
        ("delay_ms", pa.array([7], pa.uint64()), START_MS + 7),
        ("delay_ms", pa.array([2], pa.duration("s")).dictionary_encode(), START_MS + 2_000),
        ("delay_ms", pa.array([Decimal("1.25")]), START_MS + 2),
        ("delay_ms", pa.array(["7"]), START_MS + 7),
        ("delay_ms", pa.array([float("nan")]), -1),
        ("delay_ms", pa.array([None]), -1),
    ],
)
def test_numbers_of_many_types_are_taken_for_what_they_mean(small, name, column, ms):
    receipt = small.broker.send_table(pa.table({"body": [b"1"], name: column}), topic="t")
    assert receipt.deliver_at_ms.tolist() == [ms]


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("deliver_at", pa.array([1], pa.duration("s"))),
        ("deliver_at", pa.array([1], pa.time32("s"))),
        ("deliver_at_ms", pa.array([True])),
        ("delay_ms", pa.array([1], pa.timestamp("s"))),
        ("delay_ms", pa.array([1], pa.date32())),
        ("delay_ms", pa.array([1], pa.time64("ns"))),
        ("delay_ms", pa.array([True])),
        ("delay_ms", pa.array([float("inf")])),
        ("delay_ms", pa.array(["30m"])),
        ("delay_ms", pa.array([[1]])),
        ("level", pa.array([True])),
        ("level", pa.array([1.5])),
        ("level", pa.array([1], pa.duration("s"))),
    ],
)
def test_a_column_that_means_no_such_number_is_refused_in_words(small, name, column):
    with pytest.raises(RequestError, match=f"column {name} must hold .*(durations|Unix|whole numbers)"):
        small.broker.send_table(pa.table({"body": [b"1"], name: column}), topic="t")


def test_python_datetimes_are_taken(small):
    when = datetime.datetime.fromtimestamp(START_MS / 1000 + 90, UTC)
    receipt = small.broker.send_table(pa.table({"body": [b""], "deliver_at": [when]}), topic="t")
    assert receipt.deliver_at_ms.tolist() == [START_MS + 90_000]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_bodies_and_texts_of_any_arrow_type_are_taken(small, kind):
    value = "x" if kind in (pa.string(), pa.large_string()) else b"x"
    table = pa.table(
        {
            "topic": pa.array(["t", "t"]).dictionary_encode(),
            "body": pa.array([value, value], kind),
            "key": pa.array(["k", "k"], pa.large_string()),
        }
    )
    small.broker.send_table(table)
    assert small.bodies("t") == [b"x", b"x"]


def test_slices_and_chunks_of_a_larger_table_are_stored_alone(small):
    table = pa.table({"body": [b"%d" % i for i in range(50)], "key": [f"k{i}" for i in range(50)]})
    chunked = pa.concat_tables([table.slice(3, 4), table.slice(20, 2), table.slice(49)])
    receipt = small.broker.send_table(chunked, topic="t")
    assert len(receipt) == 7
    assert sorted(map(int, small.bodies("t"))) == [3, 4, 5, 6, 20, 21, 49]
    assert [found.message.body for found in small.broker.views.find("t", "k21")] == [b"21"]
    small.broker.send_table(table.slice(7, 1).to_batches()[0], topic="t")
    assert b"7" in small.bodies("t")


def test_an_empty_table_is_nothing(small):
    end = small.log_end
    receipt = small.broker.send_table(pa.table({"body": pa.array([], pa.binary())}), topic="t")
    assert (len(receipt), receipt.handles()) == (0, [])
    assert small.log_end == end


@pytest.mark.slow
def test_more_rows_and_bytes_than_a_frame_holds_are_stored_in_several(small):
    count = FRAME_ROWS_MAX + 10
    table = pa.table({"body": pa.array([b"x"] * count), "delay_ms": np.full(count, 3)})
    receipt = small.broker.send_table(table, topic="t")
    assert receipt.seqs.tolist() == list(range(count))
    assert len(set(receipt.ids.to_pylist())) == count
    small.advance(3)
    assert small.broker.status().released == count
    large = pa.table({"body": [b"%d" % i + bytes(3 << 20) for i in range(14)]})
    small.broker.send_table(large, topic="large")
    assert sorted(int(b[: b.index(0)]) for b in small.bodies("large")) == list(range(14))


def test_rows_of_a_fifo_group_share_a_queue_and_keep_their_order(small):
    groups = [f"g{i % 3}" for i in range(30)]
    table = pa.table(
        {"body": [b"%d" % i for i in range(30)], "message_group": groups, "delay_ms": [60_000] * 30}
    )
    small.broker.send_table(table, topic="t")
    small.advance(60_000)
    for group in range(3):
        rows = [m for m in small.in_topic("t") if int(m.body) % 3 == group]
        assert len({row.queue_id for row in rows}) == 1
        bodies = [int(row.body) for row in sorted(rows, key=lambda r: r.offset)]
        assert bodies == sorted(bodies)


def _one(**columns):
    return pa.table({"body": [b"fine", b"fine"], **{name: [columns[name]] * 2 for name in columns}})


def _dictionary_with_null(text):
    """A column of text, null, text, where the dictionary holds the null."""
    return pa.DictionaryArray.from_arrays([0, 1, 0], [text, None])


@pytest.mark.parametrize("name", ["id", "key", "tag", "message_group", "properties", "once"])
def test_a_null_in_the_dictionary_of_a_column_is_like_a_plain_null(small, name):
    text = {"properties": '{"p":"q"}', "once": "no"}.get(name, "x")
    bodies = ["first", "null", "first"]  # ids that are equal are those of a repeat
    table = pa.table({"body": bodies, "delay_ms": [5] * 3, name: _dictionary_with_null(text)})
    answers = small.broker.send_table(table, topic="t")
    assert len(answers.ids[1].as_py()) == 24
    small.advance(10)
    stored = {d.message.body: d.message for d in small.broker.receive("t", "g")}
    plain = stored[b"null"]
    assert (plain.keys, plain.tag, plain.message_group, dict(plain.properties)) == ((), "", "", {})
    given = stored[b"first"]
    found = (given.id, given.keys, given.tag, given.message_group, dict(given.properties))
    expected = {"key": ("x",), "properties": {"p": "q"}}.get(name, text)
    assert name == "once" or expected in found


BAD_TABLES = [
    (RequestError, "needs a `body`", pa.table({"key": ["k"]}), "t"),
    (RequestError, "given twice", _one(topic="t"), "t"),
    (RequestError, "either as a column or as an argument", _one(), None),
    (RequestError, "only one of the columns", _one(deliver_at=1, delay_ms=1), "t"),
    (RequestError, "a body is null", pa.table({"body": pa.array([b"", None])}), "t"),
    (RequestError, "a body is null", pa.table({"body": _dictionary_with_null("a")}), "t"),
    (
        IllegalTopicError,
        "1 to 127",
        pa.table({"topic": _dictionary_with_null("t"), "body": ["1", "2", "3"]}),
        None,
    ),
    (
        IllegalKeyError,
        "a row has neither",
        pa.table({"body": ["1"] * 3, "once": [True] * 3, "key": _dictionary_with_null("k")}),
        "t",
    ),
    (BodyTooLargeError, "1001 bytes, the limit is 1000", pa.table({"body": [bytes(1001)]}), "t"),
    (IllegalTopicError, "1 to 127", pa.table({"topic": pa.array([None], pa.string()), "body": [b""]}), None),
    (IllegalTopicError, "'a b'", _one(), "a b"),
    (IllegalTopicError, "reserved", _one(), "%DLQ%g"),
    (IllegalTagError, r"'a\|b'", _one(tag="a|b"), "t"),
    (IllegalKeyError, "'a b'", _one(key="a b"), "t"),
    (PropertiesTooLargeError, "16385 bytes together", _one(key="k" * 16_385), "t"),
    (PropertiesTooLargeError, "16385 bytes together", _one(tag="t" * 16_385), "t"),
    (
        PropertiesTooLargeError,
        "16387 bytes together",
        _one(tag="é" * 8_192, key="k", properties='{"p":"v"}'),
        "t",
    ),
    (IllegalPropertyError, "are reserved: TAGS;", _one(properties='{"TAGS":"v"}'), "t"),
    (IllegalIdError, "1 to 128", _one(id="i" * 129), "t"),
    (IllegalGroupError, "64", _one(message_group="g" * 65), "t"),
    (IllegalGroupError, "64", _one(message_group="g\x07"), "t"),
    (IllegalPropertyError, "JSON object", _one(properties="{"), "t"),
    (IllegalPropertyError, "JSON object", _one(properties='{"a":1}'), "t"),
    (IllegalPropertyError, "JSON object", _one(properties='["a"]'), "t"),
    (IllegalDelayError, "beyond the limit of 30d", _one(delay_ms=31 * DAY_MS), "t"),
    (IllegalDelayError, "row 0: delay_ms -1 is negative; use 0 or more", _one(delay_ms=-1), "t"),
    (IllegalDelayError, "beyond the limit of 30d", _one(delay_ms=(1 << 63) - 1), "t"),
    (IllegalDelayError, "beyond the limit of 30d", _one(deliver_at=(1 << 63) - 1), "t"),
    (WrongMessageTypeError, "takes normal messages, this one is delay", _one(delay_ms=1), "normal-only"),
]


@pytest.mark.parametrize(
    ("expected", "text", "table", "topic"), BAD_TABLES, ids=lambda value: str(value)[:30]
)
def test_a_bad_table_has_its_own_error_and_leaves_no_trace(make_small, expected, text, table, topic):
    small = make_small(body_bytes_max=1000, max_delay_ms=30 * DAY_MS)
    small.broker.topics.create("normal-only", TopicType.NORMAL)
    end = small.log_end
    with pytest.raises(expected, match=text):
        small.broker.send_table(table, topic=topic)
    assert small.log_end == end


def test_a_bad_row_in_the_last_frame_leaves_no_trace_of_the_first(small):
    bodies = [b"x"] * FRAME_ROWS_MAX + [b"y"]
    keys = [None] * FRAME_ROWS_MAX + ["a b"]
    end = small.log_end
    with pytest.raises(IllegalKeyError):
        small.broker.send_table(pa.table({"topic": ["new"] * len(bodies), "body": bodies, "key": keys}))
    assert small.log_end == end


# -- the same id again ----------------------------------------------------------------------------


def test_a_table_sent_again_within_an_hour_gets_the_first_receipts(small):
    table = pa.table(
        {
            "body": [b"1", b"2", b"3"],
            "id": ["a", None, "c"],
            "deliver_at": pa.array([START_MS + 90_000, None, None], pa.int64()),
        }
    )
    first = small.broker.send_table(table, topic="t")
    small.clock.advance(3_599_999)
    small.kill_and_open()
    again = small.broker.send_table(table, topic="t")
    assert again.seqs.tolist() == first.seqs.tolist() == [0, -1, -1]
    assert (again.ids[0], again.ids[2]) == (first.ids[0], first.ids[2])
    assert again.ids[1] != first.ids[1]
    small.advance(90_000)
    assert sorted(small.bodies("t")) == [b"1", b"2", b"2", b"3"]


def test_a_table_and_single_sends_know_each_others_ids(small):
    timed = small.send("t", b"timed", id="a", delay_ms=90_000)
    small.send("t", b"direct", id="b")
    (moved,) = small.broker.reschedule([timed.handle], by_ms=7)
    table = pa.table({"body": [b"timed", b"direct", b"3"], "id": ["a", "b", "c"], "delay_ms": [1, 1, 1]})
    receipt = small.broker.send_table(table, topic="t")
    assert receipt.seqs.tolist() == [moved.handle.seq, -1, moved.handle.seq + 1]
    assert receipt.deliver_at_ms.tolist() == [moved.deliver_at_ms, -1, START_MS + 1]
    assert small.send("t", b"3", id="c", delay_ms=9).is_repeat
    assert small.broker.send_table(table, topic="other").seqs.tolist() != receipt.seqs.tolist()
    small.clock.advance(3_600_000)
    assert min(small.broker.send_table(table, topic="t").seqs.tolist()) > moved.handle.seq + 1


def test_an_id_twice_in_a_table_is_one_message(small):
    table = pa.table({"body": [b"1", b"2", b"1"], "id": ["a", "b", "a"], "delay_ms": [10, 20, 30]})
    receipt = small.broker.send_table(table, topic="t")
    assert receipt.seqs.tolist() == [0, 1, 0]
    assert receipt.deliver_at_ms.tolist() == [START_MS + 10, START_MS + 20, START_MS + 10]
    small.advance(50)
    assert small.bodies("t") == [b"1", b"2"]


def test_a_full_disk_refuses_a_table(small):
    small.send("t", b"")
    used = small.disk.allocated_bytes(small.directory)
    small.disk.capacity_bytes = used
    end = small.log_end
    with pytest.raises(DiskFullError):
        small.broker.send_table(pa.table({"body": [bytes(1_000)] * 100}), topic="t")
    assert small.log_end == end
    small.disk.capacity_bytes = None
    assert len(small.broker.send_table(pa.table({"body": [bytes(1_000)] * 100}), topic="t")) == 100


def test_a_time_may_be_named_with_its_unit(small):
    table = pa.table({"body": [b"x"], "deliver_at_ms": [START_MS + 5]})
    assert small.broker.send_table(table, topic="t").deliver_at_ms.tolist() == [START_MS + 5]
    both = table.append_column("deliver_at", pa.array([1]))
    with pytest.raises(RequestError, match="only one of the columns deliver_at and deliver_at_ms"):
        small.broker.send_table(both, topic="t")


def test_a_topic_given_twice_is_said_to_be(small):
    with pytest.raises(RequestError, match="given twice, as 't' and as the column `topic`"):
        small.broker.send_table(pa.table({"body": [b"x"], "topic": ["u"]}), topic="t")


@pytest.mark.parametrize("name", ["key", "tag", "id", "properties"])
def test_a_text_that_is_no_text_is_refused(small, name):
    bad = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
    )
    with pytest.raises(RequestError, match="not valid Arrow data"):
        small.broker.send_table(pa.table({"body": [b"x"], name: bad}), topic="t")
    assert small.broker.status().sent == 0
