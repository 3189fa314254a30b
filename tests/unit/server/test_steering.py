"""User properties that steer a send over gRPC: RocketMQ's timer properties, levels, delays of our own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import generate_latest

from helpers.small_broker import START_MS
from tidemill.core.errors import IllegalDelayError, IllegalLevelError
from tidemill.core.model import Once, TopicType
from tidemill.server.grpc.conversion import message_of
from tidemill.server.grpc.framing import MessageReader, frame
from tidemill.server.grpc.gateway import Gateway
from tidemill.server.grpc.protocol import SERVICE, Code, definition, service
from tidemill.server.grpc.steering import Steering, take_steering
from tidemill.server.metrics import registry_of

_COMMIT = definition.TransactionResolution.COMMIT
_DAY_MS = 86_400_000


def _message(message_id: str, *, at_ms: int | None = None, topic: str = "orders", **properties: str) -> Any:
    message = definition.Message(body=b"body")
    message.topic.name = topic
    message.system_properties.message_id = message_id
    message.user_properties.update(properties)
    if at_ms is not None:
        message.system_properties.delivery_timestamp.FromMilliseconds(at_ms)
    return message


@pytest.fixture
def call(small):
    """One gRPC call to a broker; the answer."""

    async def called(name: str, request: Any) -> Any:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": frame(request.SerializeToString()), "more_body": False}

        async def answer(event: Any) -> None:
            sent.append(event)

        gateway = Gateway(small.broker, creates_topics=True)
        await gateway.service({"path": SERVICE + name, "headers": []}, receive, answer)
        await gateway.drain(1)
        (body,) = [event["body"] for event in sent if event["type"] == "http.response.body"]
        (data,) = MessageReader(1 << 20).feed(body)
        return getattr(service, f"{name}Response").FromString(data)

    return lambda name, request: asyncio.run(called(name, request))


@pytest.fixture
def send(call):
    """Send messages in one request; the answer."""
    return lambda *messages: call("SendMessage", service.SendMessageRequest(messages=messages))


def _due(small, topic: str = "orders") -> dict[str, int]:
    """When each message that waits is due, from the start."""
    return {m.id: m.deliver_at_ms - START_MS for m in small.broker.views.pending(topic_name=topic)}


_TIMERS = {
    "seconds": ({"TIMER_DELAY_SEC": "5"}, 5_000),
    "milliseconds": ({"TIMER_DELAY_MS": "1500"}, 1_500),
    "moment": ({"TIMER_DELIVER_MS": str(START_MS + 2_345)}, 2_345),
}


@pytest.mark.parametrize(("properties", "due_ms"), _TIMERS.values(), ids=_TIMERS)
def test_a_timer_property_makes_a_message_timed_and_is_used_up(send, small, properties, due_ms):
    answer = send(_message("alone", **properties, colour="red"))
    assert answer.status.code == Code.OK
    assert answer.entries[0].recall_handle
    assert [entry.status.code for entry in send(_message("a", **properties), _message("b")).entries] == [
        Code.OK,
        Code.OK,
    ]
    assert _due(small) == {"alone": due_ms, "a": due_ms}
    assert len(small.in_topic("orders")) == 1
    small.advance(due_ms)
    shown = {d.message.id: dict(message_of(d).user_properties) for d in small.broker.receive("orders", "g")}
    assert shown["alone"]["colour"] == "red"
    assert shown["alone"]["__due_at"] == str(START_MS + due_ms)
    assert not [name for of in shown.values() for name in of if name.startswith("TIMER_")]


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_in_a_transaction_a_delay_counts_from_the_commit_and_a_moment_stays(call, send, small, name):
    value = {"TIMER_DELAY_SEC": "5", "TIMER_DELAY_MS": "5000", "TIMER_DELIVER_MS": str(START_MS + 5_000)}
    half = _message("half", **{name: value[name]})
    half.system_properties.message_type = definition.MessageType.TRANSACTION
    assert send(half).status.code == Code.OK
    small.advance(1_000)
    end = service.EndTransactionRequest(message_id="half", transaction_id="half", resolution=_COMMIT)
    end.topic.name = "orders"
    assert call("EndTransaction", end).status.code == Code.OK
    assert _due(small) == {"half": 5_000 if name == "TIMER_DELIVER_MS" else 6_000}


def test_a_jitter_moves_a_message_later_and_is_used_up(call, send, small):
    half = _message("half", TIMER_DELAY_SEC="60", __jitter_ms="9000")
    half.system_properties.message_type = definition.MessageType.TRANSACTION
    messages = [_message(f"m{n}", __delay_ms="60000", __jitter_ms="9000") for n in range(20)]
    assert send(*messages, _message("at", at_ms=START_MS + 60_000, __jitter_ms="9000")).status.code == Code.OK
    assert send(half).status.code == Code.OK
    end = service.EndTransactionRequest(message_id="half", transaction_id="half", resolution=_COMMIT)
    end.topic.name = "orders"
    call("EndTransaction", end)
    due = _due(small)
    assert len(due) == 22 and len(set(due.values())) > 15
    assert all(60_000 <= ms <= 69_000 for ms in due.values())
    send(*messages)  # again
    assert _due(small) == due
    small.advance(69_000)
    delivered = small.broker.receive("orders", "g", count=32)
    assert len(delivered) == 22
    assert not [d for d in delivered if "__jitter_ms" in message_of(d).user_properties]


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        (
            {"__delay_ms": "5", "__jitter_ms": "-3"},
            "__jitter_ms is '-3'; give milliseconds as a whole number",
        ),
        ({"__delay_ms": "5", "__jitter_ms": "soon"}, "__jitter_ms is 'soon'"),
        ({"__jitter_ms": "5"}, "jitter 5 ms needs a delay or a delivery time as well"),
        ({"DELAY": "2", "__jitter_ms": "5"}, "jitter 5 ms is not possible on level 2"),
        ({"__delay_ms": "5", "__jitter_ms": "9" * 18}, "is beyond the limit of 3650d"),
    ],
)
def test_a_jitter_that_cannot_be_is_refused(send, small, properties, words):
    status = send(_message("a", **properties)).status
    assert status.code == Code.ILLEGAL_DELIVERY_TIME
    assert words in status.message
    assert small.broker.views.pending() == []


def test_a_time_in_the_past_is_now_and_a_delay_of_nothing_too(send, small):
    send(_message("past", TIMER_DELIVER_MS="17"), _message("now", TIMER_DELAY_SEC="0"))
    small.advance(0)
    assert {m.id for m in small.in_topic("orders")} == {"past", "now"}


def test_a_delete_marker_needs_no_time_of_its_own(send, small):
    send(_message("waits", TIMER_DELAY_SEC="60"))
    marker = _message("marker", TIMER_DEL_UNIQKEY="orders+waits", TIMER_DELIVER_MS=str(START_MS + 60_000))
    assert send(marker).status.code == Code.OK
    assert _due(small) == {}


def test_the_longest_delay_is_taken_and_a_longer_one_refused_with_the_limit(send, small):
    most_ms = small.settings.max_delay_ms
    assert send(_message("longest", TIMER_DELAY_MS=str(most_ms))).status.code == Code.OK
    too_long = (
        {"TIMER_DELAY_MS": str(most_ms + 1)},
        {"TIMER_DELAY_SEC": str(most_ms // 1000 + 1)},
        {"TIMER_DELAY_SEC": "9" * 18},
        {"TIMER_DELIVER_MS": str(START_MS + most_ms + 1)},
        {"TIMER_DELIVER_MS": "9" * 18},
    )
    for number, properties in enumerate(too_long):
        for messages in (
            [_message(f"x{number}", **properties)],
            [_message(f"y{number}", **properties), _message(f"z{number}", **properties)],
        ):
            status = send(*messages).status
            assert status.code == Code.ILLEGAL_DELIVERY_TIME, properties
            assert "beyond the limit of 3650d" in status.message
            assert status.message.endswith("raise --max-delay")
    half = _message("half", TIMER_DELAY_SEC="9" * 18)
    half.system_properties.message_type = definition.MessageType.TRANSACTION
    assert send(half).status.code == Code.ILLEGAL_DELIVERY_TIME
    assert list(_due(small)) == ["longest"]


def test_contradicting_times_are_refused_and_stored_nowhere(send, small):
    end = small.log_end
    status = send(_message("x", at_ms=START_MS + 4_000, TIMER_DELAY_SEC="5", DELAY="3")).status
    assert status.code == Code.ILLEGAL_DELIVERY_TIME
    assert status.message == (
        "ILLEGAL_DELIVERY_TIME: conflicting times: DELAY is '3', TIMER_DELAY_SEC is '5', "
        f"delivery_timestamp is {START_MS + 4_000} ms; give only one of them"
    )
    assert small.log_end == end


_AT_MS = START_MS + 5_000
_TIMES = {
    "TIMER_DELAY_SEC": "5",
    "TIMER_DELAY_MS": "5001",
    "__delay_ms": "5002",
    "TIMER_DELIVER_MS": str(_AT_MS + 1),
    "DELAY": "3",
    "delivery_timestamp": "",
}


@pytest.mark.parametrize("first", _TIMES)
@pytest.mark.parametrize("second", _TIMES)
def test_any_two_times_contradict_each_other(first, second):
    names = {first, second}
    given = {name: _TIMES[name] for name in names if name != "delivery_timestamp"}
    at_ms = _AT_MS if "delivery_timestamp" in names else None
    if first == second:
        assert sum(map(bool, take_steering(dict(given), at_ms)[:3])) == 1
        return
    with pytest.raises(IllegalDelayError, match="conflicting times") as refused:
        take_steering(given, at_ms)
    assert all(name in str(refused.value) for name in names)


def test_times_that_say_the_same_do_not_contradict_each_other():
    same = {"TIMER_DELAY_SEC": "5", "TIMER_DELAY_MS": "5000", "__delay_ms": "05000", "DELAY": "0"}
    assert take_steering(same, None) == Steering(None, 5_000)
    assert same == {}
    assert take_steering({"TIMER_DELIVER_MS": str(_AT_MS)}, _AT_MS) == Steering(_AT_MS)
    assert take_steering({"__once": "replace", "own": "1"}, _AT_MS) == Steering(_AT_MS, once=Once.REPLACE)


@pytest.mark.parametrize(
    "name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "__delay_ms", "DELAY"]
)
@pytest.mark.parametrize(
    "text", ["", "soon", "-1", "+1", "1.5", " 5", "5\n", "0x10", "\u0665", "9" * 19, "9" * 5_000]
)
def test_what_is_no_whole_number_is_refused_with_the_value_and_what_to_do(name, text):
    with pytest.raises(IllegalLevelError if name == "DELAY" else IllegalDelayError) as refused:
        take_steering({name: text}, None)
    said = str(refused.value)
    assert said.startswith(f"{name} is {text[:40]!r}; give ")
    assert said.endswith("of at most 18 digits")
    assert "\n" not in said


def test_a_refused_property_has_the_code_for_it_and_leaves_the_others_alone(send, small):
    answer = send(_message("wrong", TIMER_DELAY_SEC="soon"), _message("right", TIMER_DELAY_SEC="1"))
    assert [entry.status.code for entry in answer.entries] == [Code.ILLEGAL_DELIVERY_TIME, Code.OK]
    assert _due(small) == {"right": 1_000}


def test_a_level_above_the_highest_shows_in_the_metrics_where_the_answer_has_no_note(send, small, caplog):
    send(_message("x", DELAY="99"), _message("y", DELAY="18"))
    send(_message("z", DELAY="99"))
    assert _due(small) == dict.fromkeys("xyz", 7_200_000)
    figures = generate_latest(registry_of(small.broker)).decode()
    assert 'tidemill_levels_clamped_total{topic="orders"} 2.0' in figures
    assert caplog.text.count("topic 'orders': level 99 is above the highest, 18 was used") == 1


# -- topics that take delayed messages alone ------------------------------------------------------


@pytest.fixture
def delayed(small):
    return small.broker.topics.create("delayed", TopicType.DELAY)


def test_the_route_of_a_delay_topic_lets_through_what_a_client_takes_for_normal(call, small, delayed):
    request = service.QueryRouteRequest()
    request.topic.name = "delayed"
    queues = call("QueryRoute", request).message_queues
    kinds = {definition.MessageType.DELAY, definition.MessageType.NORMAL}
    assert [set(queue.accept_message_types) for queue in queues] == [kinds] * len(queues)


def test_the_brokers_own_check_decides_what_a_delay_topic_takes(send, small, delayed):
    timed = [
        {"DELAY": "1"},
        {"__delay_ms": "1000"},
        *(properties for properties, _ in _TIMERS.values()),
    ]
    for number, properties in enumerate(timed):
        assert send(_message(str(number), topic="delayed", **properties)).status.code == Code.OK
    assert send(_message("at", topic="delayed", at_ms=START_MS + 1)).status.code == Code.OK
    assert send(_message("marker", topic="delayed", TIMER_DEL_UNIQKEY="0")).status.code == Code.OK
    assert set(_due(small, "delayed")) == {"1", "2", "3", "4", "at"}
    refused = send(_message("plain", topic="delayed")).status
    assert refused.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert "'delayed' takes delay messages, this one is normal" in refused.message


def test_a_topic_of_normal_messages_takes_no_timer_properties(send, small):
    small.broker.topics.create("plain", TopicType.NORMAL)
    refused = send(_message("x", topic="plain", TIMER_DELAY_SEC="5")).status
    assert refused.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert _due(small, "plain") == {}
