"""Messages on their way in and out: every field arrives, and absurd ones are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.broker.change.transactions import OpenTransaction
from tidemill.broker.send.admission import check_draft
from tidemill.core.config import BrokerSettings
from tidemill.core.errors import (
    EmptyBodyError,
    IllegalDelayError,
    IllegalFilterError,
    IllegalLevelError,
    IllegalPropertyError,
    PropertiesTooLargeError,
    RequestError,
)
from tidemill.core.model import Delivery, Draft, Handle, MessageType, Once, SendResult, StoredMessage, Via
from tidemill.server.grpc.conversion import (
    draft_of,
    fill_namespace,
    message_of,
    milliseconds,
    resource_name,
    set_timestamp,
    tag_filter_of,
)
from tidemill.server.grpc.producing import _reply_to_send
from tidemill.server.grpc.protocol import Code, definition, service
from tidemill.server.grpc.status_codes import status_of
from tidemill.server.grpc.telemetry import Sessions


def _message(**properties: str) -> Any:
    message = definition.Message(body=b"body")
    message.topic.name = "orders"
    message.system_properties.message_id = "ID1"
    message.user_properties.update(properties)
    return message


def test_a_plain_message() -> None:
    message = _message(colour="red")
    message.system_properties.tag = "A"
    message.system_properties.keys.extend(["k1", "k2"])
    message.system_properties.message_group = "g"
    draft = draft_of(message)
    expected = Draft(
        "orders", b"body", id="ID1", tag="A", keys=("k1", "k2"), message_group="g", has_made_id=True
    )
    assert draft == Draft(**{**_fields(expected), "properties": {"colour": "red"}})


def _fields(draft: Draft) -> dict[str, Any]:
    return {name: getattr(draft, name) for name in Draft.__dataclass_fields__}


def test_a_namespace_becomes_part_of_the_name() -> None:
    message = _message()
    message.topic.resource_namespace = "prod"
    assert draft_of(message).topic == "prod%orders"


def test_the_namespace_of_a_header_is_that_of_every_resource_without_one() -> None:
    request = service.SendMessageRequest()
    for namespace in ("", "own"):
        message = request.messages.add()
        message.topic.resource_namespace, message.topic.name = namespace, "orders"
        message.user_properties["colour"] = "red"
        message.system_properties.keys.append("k")
        message.system_properties.born_timestamp.seconds = 1
    fill_namespace(request, "shop")
    assert [message.topic.resource_namespace for message in request.messages] == ["shop", "own"]
    poll = service.ReceiveMessageRequest()
    poll.message_queue.topic.name, poll.group.name = "orders", "workers"
    fill_namespace(poll, "shop")
    assert [resource_name(r) for r in (poll.message_queue.topic, poll.group)] == [
        "shop%orders",
        "shop%workers",
    ]


@pytest.mark.parametrize("prefix", ["%DLQ%", "%RETRY%"])
def test_a_namespace_stands_behind_the_prefix_of_a_groups_own_topics(prefix) -> None:
    resource = definition.Resource(resource_namespace="shop", name=f"{prefix}g1")
    assert resource_name(resource) == f"{prefix}shop%g1"
    resource.resource_namespace = ""
    assert resource_name(resource) == f"{prefix}g1"


def test_properties_that_steer_are_taken_out() -> None:
    draft = draft_of(_message(__delay_ms="1500", __once="replace", colour="red"))
    assert (draft.delay_ms, draft.once, draft.properties) == (1500, Once.REPLACE, {"colour": "red"})
    assert draft_of(_message(DELAY="3")).level == 3
    assert draft_of(_message(__once="keep")).once is Once.KEEP


@pytest.mark.parametrize(
    ("properties", "error"),
    [
        ({"__delay_ms": "soon"}, IllegalDelayError),
        ({"__delay_ms": "-1"}, IllegalDelayError),
        ({"__delay_ms": "9" * 30}, IllegalDelayError),
        ({"DELAY": "x"}, IllegalLevelError),
        ({"__once": "maybe"}, IllegalPropertyError),
    ],
)
def test_steering_that_means_nothing_is_refused(properties: dict[str, str], error: type[Exception]) -> None:
    with pytest.raises(error):
        draft_of(_message(**properties))


def test_a_reserved_name_is_refused_with_the_code_for_it() -> None:
    for name in ("__gzip", "UNIQ_KEY", "__released_at", "DLQ_ORIGIN_TOPIC"):
        with pytest.raises(IllegalPropertyError, match=name) as refused:
            check_draft(draft_of(_message(**{name: "1"})), BrokerSettings())
        assert status_of(refused.value).code == Code.ILLEGAL_MESSAGE_PROPERTY_KEY


def test_what_the_client_adds_counts_for_none_of_the_users_properties() -> None:
    """Each official client says its host, which travels as a property."""
    message = _message(**{f"p{number:03}": "v" * 124 for number in range(128)})  # 128 of them, and 16 KiB
    message.system_properties.born_host = "host"
    message.system_properties.trace_context = "t" * 4000
    check_draft(draft_of(message), BrokerSettings())
    message.system_properties.trace_context = "t" * 5000
    with pytest.raises(PropertiesTooLargeError, match="host and the trace context have 50"):
        check_draft(draft_of(message), BrokerSettings())


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"message_group": "g" * 65}, Code.ILLEGAL_MESSAGE_GROUP),
        ({"properties": {"p": "v" * 16384}}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"properties": {f"p{number}": "" for number in range(129)}}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"properties": {"a\nb": ""}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ],
)
def test_a_refusal_has_the_code_that_clients_know(fields: dict[str, Any], code: int) -> None:
    with pytest.raises(RequestError) as refused:
        check_draft(Draft("t", b"body", **fields), BrokerSettings())
    assert status_of(refused.value).code == code


def test_an_empty_body_is_refused() -> None:
    message = _message()
    message.body = b""
    with pytest.raises(EmptyBodyError):
        draft_of(message)


def test_a_delivery_time_is_rounded_up() -> None:
    message = _message()
    message.system_properties.delivery_timestamp.seconds = 5
    message.system_properties.delivery_timestamp.nanos = 1
    assert draft_of(message).deliver_at_ms == 5_001


@given(st.integers(-(2**60), 2**60), st.integers(0, 999_999_999))
def test_no_timestamp_is_too_large(seconds: int, nanos: int) -> None:
    stamp = definition.Message().system_properties.born_timestamp
    stamp.seconds, stamp.nanos = seconds, nanos
    exact_ns = seconds * 1_000_000_000 + nanos
    assert 0 <= milliseconds(stamp) * 1_000_000 - exact_ns < 1_000_000


@given(st.integers(0, 2**50))
def test_a_time_comes_back(at_ms: int) -> None:
    stamp = definition.Message().system_properties.born_timestamp
    set_timestamp(stamp, at_ms)
    assert milliseconds(stamp) == at_ms


@pytest.mark.parametrize(
    ("expression", "taken", "left"),
    [
        ("*", ["A", ""], []),
        ("", ["A"], []),
        ("A", ["A"], ["B", ""]),
        ("A || B", ["A", "B"], ["C", ""]),
        ("A||||B", ["A", "B"], ["C", ""]),
        ("||A", ["A"], ["B", ""]),
        ("A || ", ["A"], ["B", ""]),
        (" || A || || B ||", ["A", "B"], ["C", ""]),
    ],
)
def test_tag_filters(expression: str, taken: list[str], left: list[str]) -> None:
    accepts = tag_filter_of(definition.FilterExpression(expression=expression))
    assert all(accepts is None or accepts(tag) for tag in taken)
    assert not any(accepts is None or accepts(tag) for tag in left)


def test_other_filters_are_refused() -> None:
    for expression in (
        definition.FilterExpression(type=definition.FilterType.SQL, expression="a > 1"),
        definition.FilterExpression(expression="||"),
        definition.FilterExpression(expression=" || || "),
    ):
        with pytest.raises(IllegalFilterError):
            tag_filter_of(expression)


def _stored(draft: Draft, **changes: Any) -> StoredMessage:
    fields = {
        "id": draft.id,
        "topic_id": 1,
        "queue_id": 2,
        "type": MessageType.DELAY,
        "level": 0,
        "flags": 0,
        "tag": draft.tag,
        "keys": draft.keys,
        "message_group": draft.message_group,
        "born_at_ms": 1_000,
        "stored_at_ms": 1_001,
        "deliver_at_ms": 5_000,
        "properties": draft.kept_properties,
        "body": draft.body,
    }
    return StoredMessage(**{**fields, **changes})


def test_a_delivery_has_what_clients_insist_on() -> None:
    sent = _message(colour="red")
    sent.system_properties.body_encoding = definition.Encoding.GZIP
    sent.system_properties.born_host = "10.0.0.1"
    stored = _stored(draft_of(sent))
    message = message_of(Delivery("orders", "g", 2, 7, 3, 9_000, "ack_token", 5_002, Via.NEAR, 0, stored))
    system = message.system_properties
    assert (system.message_id, system.receipt_handle, system.delivery_attempt) == ("ID1", "ack_token", 3)
    assert system.body_encoding == definition.Encoding.GZIP
    assert system.born_host == "10.0.0.1"
    assert system.body_digest.checksum == "841A2D689AD86BD1611447453C22C6FC"
    assert milliseconds(system.delivery_timestamp) == 5_000
    assert dict(message.user_properties) == {
        "colour": "red",
        "__stored_at": "1001",
        "__due_at": "5000",
        "__released_at": "5002",
        "__runner": "near",
        "__rolls": "0",
    }


def test_how_often_a_message_was_rolled_is_shown_only_where_it_is_known() -> None:
    stored = _stored(draft_of(_message()))
    for rolls, told in ((None, None), (0, "0"), (24, "24")):
        delivery = Delivery("orders", "g", 2, 7, 3, 9_000, "r", 5_002, Via.SPARK, rolls, stored)
        assert dict(message_of(delivery).user_properties).get("__rolls") == told


def test_a_client_is_shown_the_topic_without_its_own_namespace() -> None:
    delivery = Delivery(
        "prod%orders", "g", 2, 7, 3, 9_000, "r", 5_002, Via.NEAR, 0, _stored(draft_of(_message()))
    )
    for namespace, shown in (
        ("prod", ("prod", "orders")),
        ("", ("", "prod%orders")),
        ("pro", ("", "prod%orders")),
    ):
        topic = message_of(delivery, namespace).topic
        assert (topic.resource_namespace, topic.name) == shown
        assert resource_name(topic) == "prod%orders"


def test_a_dead_letter_shows_a_client_the_names_that_it_knows() -> None:
    properties = {
        "DLQ_ORIGIN_TOPIC": "shop%orders",
        "DLQ_ORIGIN_MESSAGE_ID": "x",
        "RETRY_TOPIC": "shop%orders",
    }
    letter = _stored(draft_of(_message()), properties=properties)
    delivery = Delivery("%DLQ%shop%g1", "shop%g", 2, 7, 3, 9_000, "r", 5_002, Via.NEAR, 0, letter)
    for namespace, topic, origin in (
        ("shop", "%DLQ%g1", "orders"),
        ("", "%DLQ%shop%g1", "shop%orders"),
        ("sho", "%DLQ%shop%g1", "shop%orders"),
    ):
        message = message_of(delivery, namespace)
        assert message.topic.name == topic
        assert resource_name(message.topic) == "%DLQ%shop%g1"
        assert message.system_properties.dead_letter_queue.topic == origin
        assert message.user_properties["DLQ_ORIGIN_TOPIC"] == origin
        assert message.user_properties["RETRY_TOPIC"] == origin


def test_a_producer_is_asked_about_the_topic_by_the_name_it_knows() -> None:
    sessions = Sessions(BrokerSettings())
    session = sessions.open("client", None, "prod")
    session.is_producer = True
    half = OpenTransaction("prod%orders", _stored(draft_of(_message()), type=MessageType.TRANSACTION))
    assert sessions.ask_about(half, "client")
    command = service.TelemetryCommand.FromString(session.outbox.get_nowait())
    topic = command.recover_orphaned_transaction_command.message.topic
    assert (topic.resource_namespace, topic.name) == ("prod", "orders")


@given(st.text(min_size=1, max_size=128), st.booleans(), st.integers(-1, (1 << 63) - 1))
def test_the_quick_reply_is_the_same_as_the_slow_one(message_id: str, is_timed: bool, offset: int) -> None:
    message_id = message_id.encode("utf-8", "ignore").decode() or "x"
    handle = Handle("ABCD1234", "t" * 100, message_id, 1 << 40) if is_timed else None
    receipt = SendResult(message_id, "t", handle, 5, offset=None if is_timed or offset < 0 else offset)
    quick = service.SendMessageResponse.FromString(_reply_to_send([_message()], [receipt]))
    slow = _reply_to_send([_message(), _message()], [receipt, receipt])
    assert quick.status.code == Code.OK
    assert quick.status == slow.status
    assert list(quick.entries) == list(slow.entries)[:1]


@pytest.mark.parametrize(("language", "unit_ms"), [("JAVA", 1000), ("PYTHON", 1000), ("NODE_JS", 1)])
def test_a_producer_is_told_to_pause_when_the_broker_is_busy(language: str, unit_ms: int) -> None:
    """Node's client knows no fractions of a second, and takes seconds for milliseconds."""
    asked = definition.Settings()
    asked.user_agent.language = definition.Language.Value(language)
    asked.publishing.SetInParent()
    sessions = Sessions(BrokerSettings())
    backoff = sessions.settings_for(
        sessions.open("p"), asked, None
    ).settings.backoff_policy.exponential_backoff
    nanos = 0 if language == "NODE_JS" else backoff.initial.nanos
    first_ms = backoff.initial.seconds * unit_ms + nanos / 1_000_000
    assert 10 <= first_ms <= 50
    assert backoff.max.seconds * unit_ms == 1000
    assert backoff.multiplier == 2
