"""Whatever comes by the local listener, its caller gets a code or the end, and the next one is served."""

from __future__ import annotations

import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.hypothesis_examples import examples
from helpers.small_broker import SmallBroker
from tidemill.client.transport.endpoint import read_head
from tidemill.core.addresses import unix_socket_address
from tidemill.core.model import Draft
from tidemill.core.send_batch import encode_drafts
from tidemill.server.security.guard import Guard
from tidemill.server.send_batch_service import SendBatchService
from tidemill.server.unix.unix_listener import UnixListener

_RIGHT = encode_drafts([Draft("orders", b"x", id="same", delay_ms=60_000)])
_HEAD = b"POST /v1/send-batch HTTP/1.1\r\nContent-Length: %d\r\n\r\n"
_REQUEST = _HEAD % len(_RIGHT) + _RIGHT


@pytest.fixture(scope="module")
def listener(tmp_path_factory):
    small = SmallBroker(tmp_path_factory.mktemp("fuzz") / "data")
    listener = UnixListener(SendBatchService(small.broker), Guard(), 8081)
    yield listener
    listener.close(30.0)
    small.check()
    small.close()


def _said(listener: UnixListener, data: bytes) -> bytes:
    """Everything that the listener answers to these bytes, after which nothing more comes."""
    heard = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(30.0)
        caller.connect(unix_socket_address(listener.name))
        try:
            caller.sendall(data)
            caller.shutdown(socket.SHUT_WR)
            while piece := caller.recv(65_536):
                heard += piece
        except (BrokenPipeError, ConnectionResetError):
            pass
    return heard


_bent = st.tuples(st.integers(0, len(_REQUEST)), st.integers(0, len(_REQUEST)), st.binary(max_size=40))
_inputs = st.one_of(
    st.binary(max_size=200),
    st.binary(max_size=200).map(lambda content: _HEAD % len(content) + content),
    _bent.map(lambda cut: _REQUEST[: min(cut[:2])] + cut[2] + _REQUEST[max(cut[:2]) :]),
)


@given(data=_inputs)
@settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_bytes_harm_the_unix_socket(listener, data) -> None:
    heard = _said(listener, data)
    if heard:
        head = read_head(heard)
        assert head is not None
        assert head[0].status in (200, 400, 404, 408, 411, 413)
    right = read_head(_said(listener, _REQUEST))
    assert right is not None
    assert right[0].status == 200
