"""Whatever MessagingService is asked, in a good frame: each call ends with a status, none in a fault."""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.hypothesis_examples import examples
from helpers.small_broker import SmallBroker
from tidemill.server.grpc.framing import Status
from tidemill.server.grpc.gateway import Gateway
from tidemill.server.grpc.protocol import SERVICE, Code, service

_SETTINGS = settings(
    max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck), database=None
)
_METHODS = [method.name for method in service.DESCRIPTOR.services_by_name["MessagingService"].methods]
_SENT_BACK = {"ReceiveMessage", "Telemetry"}  # streams: answered by messages of other names
_INTEGERS = st.sampled_from([-1, 0, 1, 3, 16, 30_000, 2**31 - 1]) | st.integers(-(2**31), 2**31 - 1)
_TEXTS = st.sampled_from(["", "orders", "group", "a|b", "no such", "%DLQ%group", "*", "5000"]) | st.text(
    max_size=8
)
_LENGTHS = {
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
}


class _Faults(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(self.format(record))


class _Rig:
    """A gateway on a small broker, called as a server would call it."""

    def __init__(self, small: SmallBroker) -> None:
        self.runner = asyncio.Runner()
        self.faults = _Faults()
        logging.getLogger("tidemill").addHandler(self.faults)
        self.gateway = self.runner.run(self._make(small))

    async def _make(self, small: SmallBroker) -> Gateway:
        return Gateway(small.broker)

    def call(self, method: str, body: bytes) -> tuple[Status, list[bytes]]:
        events = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Any] = []

        async def receive() -> Any:
            return events.pop(0) if events else {"type": "http.disconnect"}

        async def send(event: Any) -> None:
            sent.append(event)

        # A poll waits as long as it asks to, but not past the caller's deadline.
        headers = [(b"grpc-timeout", b"30m"), (b"x-mq-client-id", b"fuzz")]
        scope = {"type": "http", "path": SERVICE + method, "headers": headers}
        self.runner.run(self.gateway.service(scope, receive, send))
        (trailers,) = [event for event in sent if event["type"] == "http.response.trailers"]
        bodies = [event["body"] for event in sent if event["type"] == "http.response.body" and event["body"]]
        return Status(int(dict(trailers["headers"])[b"grpc-status"])), bodies

    def close(self) -> None:
        self.runner.run(self.gateway.drain(5))
        self.runner.close()
        logging.getLogger("tidemill").removeHandler(self.faults)


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    small = SmallBroker(tmp_path_factory.mktemp("gateway") / "data")
    small.send("orders", b"x", delay_ms=60_000, keys=("k",))
    small.send("orders", b"y")
    rig = _Rig(small)
    yield rig
    rig.close()
    small.check()
    small.close()


@st.composite
def _filled(draw: Any, descriptor: Descriptor, message: Any, depth: int = 0) -> Any:
    """A message with some of its fields set, those of messages inside it too."""
    for field in descriptor.fields:
        if not draw(st.booleans()):
            continue
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            getattr(message, field.name).update(draw(st.dictionaries(_TEXTS, _TEXTS, max_size=2)))
        elif field.message_type is not None:
            if depth < 5:
                many = getattr(message, field.name)
                parts = [many.add() for _ in range(draw(st.integers(0, 2)))] if _is_list(field) else [many]
                for part in parts:
                    part.SetInParent()
                    draw(_filled(field.message_type, part, depth + 1))
        elif _is_list(field):
            getattr(message, field.name).extend(draw(st.lists(_scalar(field), max_size=2)))
        else:
            setattr(message, field.name, draw(_scalar(field)))
    return message


def _is_list(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _scalar(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.type == FieldDescriptor.TYPE_STRING:
        return _TEXTS
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=20)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return st.booleans()
    if field.type == FieldDescriptor.TYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values]) | st.just(99)
    if field.type in _LENGTHS:
        return _INTEGERS.filter(lambda n: n >= _LENGTHS[field.type][0]) | st.integers(*_LENGTHS[field.type])
    return _INTEGERS


def _framed(*messages: bytes) -> bytes:
    return b"".join(struct.pack(">BI", 0, len(message)) + message for message in messages)


def _require_no_fault(rig: _Rig, method: str, body: bytes) -> None:
    status, bodies = rig.call(method, body)
    assert not rig.faults.said, rig.faults.said.pop()
    assert status in (
        Status.OK,
        Status.INVALID_ARGUMENT,
        Status.DEADLINE_EXCEEDED,
        Status.UNIMPLEMENTED,
    )
    if status is Status.OK and method not in _SENT_BACK:
        (answer,) = bodies
        response = getattr(service, f"{method}Response").FromString(answer[5:])
        assert response.status.code not in (Code.INTERNAL_SERVER_ERROR, Code.CODE_UNSPECIFIED)


@pytest.mark.parametrize("method", _METHODS)
def test_no_request_makes_it_fail(rig, method) -> None:
    kind = service.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name[method].input_type
    request_class = getattr(service, kind.name)

    @_SETTINGS
    @given(st.data())
    def ask(data) -> None:
        request = data.draw(_filled(kind, request_class()))
        _require_no_fault(rig, method, _framed(request.SerializeToString()))

    ask()


@_SETTINGS
@given(st.sampled_from(_METHODS), st.binary(max_size=60))
def test_no_bytes_in_a_frame_make_it_fail(rig, method, content) -> None:
    _require_no_fault(rig, method, _framed(content))
