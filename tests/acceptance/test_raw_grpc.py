"""The gRPC endpoint with a bare channel: requests that official clients cannot send."""

from __future__ import annotations

import http.client
import struct
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from acceptance.serving import Served
from tidemill.core.clock import SystemClock
from tidemill.server.grpc.protocol import SERVICE, Code, definition, service

_now_ms = SystemClock().now_ms
_COMMIT = definition.TransactionResolution.COMMIT
_TRANSACTION = definition.MessageType.TRANSACTION


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("raw") / "data")
    served.prepare("orders", "cancelled", "batched", "placed", "ordered", "paid", "once")
    yield served.start()
    served.stop()


@pytest.fixture
def channel(served):
    with grpc.insecure_channel(served.endpoint) as channel:
        yield channel


def _call(channel: grpc.Channel, name: str, request: Any) -> Any:
    method = channel.unary_unary(
        SERVICE + name,
        request_serializer=type(request).SerializeToString,
        response_deserializer=getattr(service, f"{name}Response").FromString,
    )
    return method(request, timeout=10)


def _message(topic: str, message_id: str, *, body: bytes = b"body", **properties: str) -> Any:
    message = definition.Message(body=body)
    message.topic.name = topic
    message.system_properties.message_id = message_id
    message.user_properties.update(properties)
    return message


def _send(channel: grpc.Channel, *messages: Any) -> Any:
    return _call(channel, "SendMessage", service.SendMessageRequest(messages=messages))


def _poll(channel: grpc.Channel, topic: str, seconds: int = 8, group: str = "workers") -> Any:
    request = service.ReceiveMessageRequest(batch_size=32)
    request.group.name, request.message_queue.topic.name = group, topic
    request.long_polling_timeout.seconds = seconds
    method = channel.unary_stream(
        SERVICE + "ReceiveMessage",
        request_serializer=service.ReceiveMessageRequest.SerializeToString,
        response_deserializer=service.ReceiveMessageResponse.FromString,
    )
    return method(request, timeout=seconds + 3)


def _messages(frames: Any) -> list[Any]:
    return [frame.message for frame in frames if frame.HasField("message")]


def test_a_batch_answers_each_message(channel):
    long_ago = _message("batched", "B", __delay_ms="x")
    response = _send(channel, _message("batched", "A"), long_ago, _message("batched", "C"))
    assert response.status.code == Code.MULTIPLE_RESULTS
    codes = [entry.status.code for entry in response.entries]
    assert codes == [Code.OK, Code.ILLEGAL_DELIVERY_TIME, Code.OK]
    assert {m.system_properties.message_id for m in _messages(_poll(channel, "batched"))} <= {"A", "C"}


def test_a_send_says_the_offset_at_which_the_message_is_received(channel):
    sent = {}
    for number in range(9):  # more than there are queues
        (entry,) = _send(channel, _message("placed", f"P{number}")).entries
        sent[entry.message_id] = entry.offset
    batch = _send(channel, *(_message("placed", f"B{number}") for number in range(9)))
    sent |= {entry.message_id: entry.offset for entry in batch.entries}
    (again,) = _send(channel, _message("placed", "P8")).entries
    assert again.offset == sent["P8"] > 0
    found: dict[str, int] = {}
    while len(found) < len(sent):
        messages = [message.system_properties for message in _messages(_poll(channel, "placed"))]
        assert messages, "no more messages came"
        found |= {system.message_id: system.queue_offset for system in messages}
    assert found == sent
    assert max(sent.values()) > 2


def test_a_send_that_is_repeated_stores_once(channel):
    first = _send(channel, _message("orders", "SAME", __delay_ms="600000"))
    second = _send(channel, _message("orders", "SAME", __delay_ms="600000"))
    assert first.entries[0].recall_handle == second.entries[0].recall_handle


def test_a_delete_marker_cancels_and_is_not_stored(channel):
    stored = _send(channel, _message("cancelled", "DOOMED", __delay_ms="600000")).entries[0]
    for number, name in enumerate(("DOOMED", "cancelled+DOOMED")):
        marker = _message("cancelled", f"MARKER-{number}", TIMER_DEL_UNIQKEY=name)
        entry = _send(channel, marker).entries[0]
        assert (entry.status.code, entry.message_id) == (Code.OK, f"MARKER-{number}")
    asked = service.RecallMessageRequest(topic={"name": "cancelled"}, recall_handle=stored.recall_handle)
    assert _call(channel, "RecallMessage", asked).status.code == Code.OK  # cancelled before
    unknown = _message("cancelled", "MARKER-2", TIMER_DEL_UNIQKEY="NEVER-SENT")
    assert _send(channel, unknown).status.code == Code.NOT_FOUND
    assert _messages(_poll(channel, "cancelled", seconds=1)) == []


def test_once_by_key(channel):
    handles = []
    for message_id, once in (("K1", "keep"), ("K2", "keep"), ("K3", "replace")):
        message = _message("once", message_id, __delay_ms="600000", __once=once)
        message.system_properties.keys.append("key")
        entry = _send(channel, message).entries[0]
        assert (entry.status.code, entry.message_id) == (Code.OK, "K1")
        handles.append(entry.recall_handle)
    assert handles[0] == handles[1] != handles[2]


def test_fifo_and_delay_together(channel):
    due_ms = _now_ms() + 700
    for number in range(5):
        message = _message("ordered", f"N{number}", body=b"%d" % number)
        message.system_properties.message_group = "a"
        message.system_properties.delivery_timestamp.seconds = due_ms // 1000
        message.system_properties.delivery_timestamp.nanos = due_ms % 1000 * 1_000_000
        assert _send(channel, message).status.code == Code.OK
    found: list[Any] = []
    while len(found) < 5:
        messages = _messages(_poll(channel, "ordered"))
        assert messages
        found += messages
    assert _now_ms() >= due_ms
    assert [m.body for m in found] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("name", ["UNIQ_KEY", "TAGS", "__transactionId__", "__released_at", "RETRY_TOPIC"])
def test_a_reserved_property_name_is_refused(channel, name):
    for kind in (definition.MessageType.NORMAL, _TRANSACTION):
        message = _message("orders", "reserved", **{name: "mine"})
        message.system_properties.message_type = kind
        status = _send(channel, message).status
        assert status.code == Code.ILLEGAL_MESSAGE_PROPERTY_KEY
        assert name in status.message


def test_tag_and_keys_may_be_large(channel):
    message = _message("orders", "large")
    message.system_properties.tag = "t" * 8_000
    message.system_properties.keys.extend(f"{number:04d}" for number in range(2_000))
    assert _send(channel, message).status.code == Code.OK
    message.system_properties.keys.extend(["k" * 385])
    assert _send(channel, message).status.code == Code.MESSAGE_PROPERTIES_TOO_LARGE


def test_transaction_and_delay_together(channel):
    message = _message("paid", "T1", __delay_ms="400")
    message.system_properties.message_type = _TRANSACTION
    transaction_id = _send(channel, message).entries[0].transaction_id
    assert _messages(_poll(channel, "paid", seconds=1)) == []
    request = service.EndTransactionRequest(
        message_id="T1", transaction_id=transaction_id, resolution=_COMMIT
    )
    request.topic.name = "paid"
    committed_ms = _now_ms()
    assert _call(channel, "EndTransaction", request).status.code == Code.OK
    assert _call(channel, "EndTransaction", request).status.code == Code.OK
    (found,) = _messages(_poll(channel, "paid"))
    assert _now_ms() >= committed_ms + 400
    assert found.user_properties["__transactionId__"] == "T1"
    request.message_id = request.transaction_id = "T2"
    assert _call(channel, "EndTransaction", request).status.code == Code.INVALID_TRANSACTION_ID


def test_a_poll_that_was_given_up_swallows_nothing(served, channel):
    with grpc.insecure_channel(served.endpoint) as other:
        given_up = [_poll(other, "cancelled") for _ in range(3)]
        _send(other, _message("orders", "unrelated"))  # by now the polls have arrived
        for poll in given_up:
            poll.cancel()
    waiting = _poll(channel, "cancelled", seconds=20)
    _send(channel, _message("cancelled", "X"))
    sent_ms = _now_ms()
    (found,) = _messages(waiting)
    assert found.system_properties.message_id == "X"
    assert _now_ms() - sent_ms < 5_000


@pytest.mark.parametrize(
    ("bytes_sent", "code"),
    [
        (b"\xff" * 40, grpc.StatusCode.INVALID_ARGUMENT),
        (b"", None),
    ],
)
def test_a_request_that_is_no_message_gets_a_code(channel, bytes_sent, code):
    method = channel.unary_unary(SERVICE + "SendMessage")
    if code is None:
        response = service.SendMessageResponse.FromString(method(bytes_sent, timeout=5))
        assert response.status.code == Code.MESSAGE_CORRUPTED
    else:
        with pytest.raises(grpc.RpcError) as caught:
            method(bytes_sent, timeout=5)
        assert caught.value.code() is code


def test_a_body_beyond_the_limit_is_refused_and_the_limit_itself_taken(served):
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(served.endpoint, options=options) as channel:
        largest = _send(channel, _message("orders", "BIG", body=bytes(4 << 20)))
        assert largest.status.code == Code.OK
        larger = _send(channel, _message("orders", "BIGGER", body=bytes((4 << 20) + 1)))
        assert larger.status.code == Code.MESSAGE_BODY_TOO_LARGE


def test_an_announced_gigabyte_is_refused_at_once(served):
    connection = http.client.HTTPConnection(served.endpoint, timeout=10)
    body = struct.pack(">BI", 0, 1 << 30) + b"a little"
    connection.request("POST", SERVICE + "SendMessage", body, {"content-type": "application/grpc"})
    assert connection.getresponse().status == 200
    connection.close()


def test_what_is_not_offered_is_unimplemented(channel):
    for name in ("PullMessage", "UpdateOffset", "GetOffset", "QueryOffset", "SyncLiteSubscription"):
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(SERVICE + name)(b"", timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_telemetry_stream_begins_before_anything_is_said(channel):
    begun = threading.Event()

    def says_nothing_before_it_begins() -> Iterator[bytes]:
        begun.wait(10)
        yield b""

    talk = channel.stream_stream(SERVICE + "Telemetry")(says_nothing_before_it_begins(), timeout=9)
    talk.initial_metadata()  # waits until there is some, or the call has failed
    assert talk.is_active()
    begun.set()
    talk.cancel()
