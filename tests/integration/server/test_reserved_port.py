"""A reserved port: the endpoint shares it, no other program gets it, and the next process finds it again."""

from __future__ import annotations

import socket

import pytest

from tidemill.core.errors import RequestError, StorageError
from tidemill.server.process.reserved_port import hold_port, require_guarded

HERE = "127.0.0.1"


def _listen_as_the_server_does(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((HERE, port))
    listener.listen()
    return listener


def test_the_server_alone_gets_the_connections_of_a_reserved_port():
    with hold_port(HERE, 0) as port:
        for _ in range(2):  # a broker process and the one after it
            with (
                _listen_as_the_server_does(port) as listener,
                socket.create_connection((HERE, port)) as caller,
            ):
                heard, _ = listener.accept()
                heard.sendall(b"hello")
                assert caller.recv(5) == b"hello"
                heard.close()


def test_no_other_program_gets_a_reserved_port_while_no_server_listens():
    with hold_port(HERE, 0) as port:
        with pytest.raises(StorageError, match=r"Address already in use; choose another --tls-port"):
            with hold_port(HERE, port, "--tls-port"):
                pass
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                other.bind((HERE, port))
    with hold_port(HERE, port) as again:
        assert again == port


def test_a_port_on_which_a_server_listens_is_not_reserved():
    with _listen_as_the_server_does(0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(StorageError, match="choose another --port"):
            with hold_port(HERE, port):
                pass


def test_connections_that_ended_a_moment_ago_do_not_hinder():
    with hold_port(HERE, 0) as port:
        with _listen_as_the_server_does(port) as listener, socket.create_connection((HERE, port)) as caller:
            heard, _ = listener.accept()
            heard.close()  # first, so that its end lingers here
            assert caller.recv(1) == b""
    with hold_port(HERE, port) as again:
        assert again == port


def test_an_address_that_is_no_address_of_this_machine_is_named():
    with pytest.raises(StorageError, match="choose another --host"):
        with hold_port("203.0.113.7", 0):
            pass


def test_an_address_for_others_wants_a_guard():
    require_guarded(HERE, is_guarded=False)
    require_guarded("0.0.0.0", is_guarded=True)
    with pytest.raises(RequestError, match="--auth"):
        require_guarded("0.0.0.0", is_guarded=False)
