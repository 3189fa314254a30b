"""Names of properties that belong to the broker: refused wherever a message comes in, and kept apart on the
way out. Tag, keys and properties share 16 KiB."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tidemill.core.errors import IllegalPropertyError, PropertiesTooLargeError
from tidemill.core.limits import PROPERTIES_BYTES_MAX
from tidemill.core.model import Draft
from tidemill.core.property_names import RESERVED_PROPERTIES, split_properties
from tidemill.core.send_batch import decode_columns, encode_drafts
from tidemill.server.grpc.conversion import message_of

OF_ROCKETMQ = (
    *("UNIQ_KEY", "TAGS", "KEYS", "WAIT", "REAL_TOPIC", "REAL_QID", "PGROUP", "CLUSTER", "MSG_REGION"),
    *("TRACE_ON", "TRAN_MSG", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_TOPIC"),
    *("DLQ_ORIGIN_MESSAGE_ID", "__SHARDINGKEY", "__transactionId__"),
)
OF_THE_BROKER = (
    *("__stored_at", "__due_at", "__released_at", "__runner", "__rolls"),
    *("__born_host", "__gzip", "__trace", "__half_delay_ms", "RECONSUME_TIME"),
)
FREE = (
    *("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_DEL_UNIQKEY"),
    *("__delay_ms", "__once", "uniq_key", "Tags", "__mine", "retry_topic"),
)


def test_the_list_is_complete() -> None:
    assert {*OF_ROCKETMQ, *OF_THE_BROKER} == RESERVED_PROPERTIES
    assert RESERVED_PROPERTIES.isdisjoint(FREE)


@pytest.mark.parametrize("name", sorted(RESERVED_PROPERTIES))
def test_a_reserved_name_is_refused_on_every_way_in(small, name) -> None:
    draft = Draft("t", b"x", id="i", properties={"own": "1", name: "2"})
    end = small.log_end
    with pytest.raises(IllegalPropertyError, match=f"are reserved: {name};"):
        small.broker.send([draft])
    (answer,) = small.broker.send_each([draft])
    assert isinstance(answer, IllegalPropertyError)
    (answers,) = small.broker.send_columns([decode_columns(encode_drafts([draft]))])
    answer = answers.errors[0]
    assert isinstance(answer, IllegalPropertyError)
    with pytest.raises(IllegalPropertyError):
        small.broker.transactions.begin([draft])
    table = pa.table({"body": [b"fine", b"x"], "properties": ["", json.dumps({name: "2"})]})
    with pytest.raises(IllegalPropertyError):
        small.broker.send_table(table, topic="t")
    assert small.log_end == end


@pytest.mark.parametrize("name", FREE)
def test_other_names_are_the_senders(small, name) -> None:
    small.broker.send([Draft("t", b"x", id="i", properties={name: "2"})])
    small.broker.send_table(pa.table({"body": [b"x"], "properties": [json.dumps({name: "2"})]}), topic="t")
    assert [dict(d.message.properties) for d in small.broker.receive("t", "g")] == [{name: "2"}] * 2


def test_what_the_broker_adds_differs_from_the_senders_properties_and_is_left_out_to_send_on(small) -> None:
    small.broker.receiver.set_group("g", attempts_max=2)
    carried = {"__born_host": "10.0.0.1", "__trace": "t", "__gzip": "1"}
    sent = Draft("t", b"x", delay_ms=1, id="i", message_group="m", properties={"own": "1"}, carried=carried)
    small.broker.send_each([sent])
    small.advance(1)
    (first,) = small.broker.receive("t", "g")
    small.broker.send_back([first.ack_token])
    small.advance(10_000)
    (again,) = small.broker.receive("t", "g")
    small.broker.send_back([again.ack_token])
    (letter,) = small.broker.receive("%DLQ%g", "h")
    for delivery in (first, again, letter):
        shown = dict(message_of(delivery).user_properties)
        assert shown.pop("own") == "1"
        assert set(shown) < RESERVED_PROPERTIES
        own, added = split_properties(delivery.message.properties)
        assert own == {"own": "1"}
        assert added.keys() <= RESERVED_PROPERTIES
        assert {**own, **added} == delivery.message.properties
    assert {"RECONSUME_TIME", "ORIGIN_MESSAGE_ID"} <= letter.message.properties.keys()
    small.broker.send([Draft("t", b"on", properties=own)])


def test_only_fields_of_a_message_are_carried(small) -> None:
    for carried in ({"own": "1"}, {"__trace": "\ud800"}):
        with pytest.raises(IllegalPropertyError, match="carried"):
            small.broker.send([Draft("t", b"x", carried=carried)])


@pytest.mark.parametrize(
    "named",
    [
        {"tag": "t" * PROPERTIES_BYTES_MAX},
        {"keys": ("k" * PROPERTIES_BYTES_MAX,)},
        {"keys": ("é" * (PROPERTIES_BYTES_MAX // 2),)},
        {"keys": tuple(f"{number:04d}" for number in range(PROPERTIES_BYTES_MAX // 4))},
        {"tag": "t" * 5_000, "keys": ("k" * 5_000, "l" * 1_000), "properties": {"p": "v" * 5_383}},
    ],
    ids=["tag", "key", "bytes", "keys", "together"],
)
def test_tag_and_keys_may_be_as_large_as_properties(small, named) -> None:
    fits = Draft("t", b"x", delay_ms=1, **named)
    over = Draft("t", b"x", delay_ms=1, **{**named, "message_group": "g", "tag": named.get("tag", "") + "+"})
    small.broker.send([fits])
    (answer,) = small.broker.send_each([Draft("t", b"x", 1, id="i", **named)])
    assert not isinstance(answer, Exception)
    if fits.keys:
        assert len(small.broker.views.pending(key=fits.keys[0])) == 2
    with pytest.raises(PropertiesTooLargeError, match="have 16385 bytes together, the limit is 16384"):
        small.broker.send([over])
    (answer,) = small.broker.send_each([Draft("t", b"x", id="j", **{**named, "tag": over.tag})])
    assert isinstance(answer, PropertiesTooLargeError)
    small.advance(1)
    for delivery in small.broker.receive("t", "g", count=2):
        message = delivery.message
        assert (message.tag, message.keys) == (fits.tag, fits.keys)
        assert message.properties == fits.properties


def test_a_key_given_several_times_is_found_once(small) -> None:
    small.broker.send(
        [Draft("t", b"timed", delay_ms=1, keys=("a", "b", "a")), Draft("t", b"x", keys=("a", "a"))]
    )
    assert len(small.broker.views.pending(key="a")) == 1
    assert len(small.broker.views.find("t", "a")) == 2


@pytest.mark.parametrize("more", [0, 1])
def test_the_limit_is_the_same_in_a_table(small, more) -> None:
    rows = {
        "body": [b"x", b"y"],
        "tag": ["", "t" * (5_000 + more)],
        "key": ["", "k" * 6_000],
        "properties": ["", json.dumps({"p": "\u0001é" * 1_794})],  # longer in JSON than in itself
    }
    if more:
        with pytest.raises(PropertiesTooLargeError, match="have 16385 bytes together"):
            small.broker.send_table(pa.table({**rows, "key": ["", "k" * 6_001]}), topic="t")
    else:
        assert len(small.broker.send_table(pa.table(rows), topic="t")) == 2
