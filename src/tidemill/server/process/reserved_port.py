"""Ports reserved for the server, from before it listens until the last broker process has ended.

Owns one socket for each, bound and never listening, which the server shares (`SO_REUSEPORT`). So no other
process takes the port while a broker process starts or restarts: neither another program nor, where the port
is ephemeral, an outgoing connection. The server itself would not notice: it would share the port of another
server, and half the calls would go to the wrong one.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tidemill.core.addresses import is_this_machine
from tidemill.core.errors import RequestError, StorageError

_PORT_PROBLEMS = (errno.EADDRINUSE, errno.EACCES)


def require_guarded(host: str, *, is_guarded: bool) -> None:
    """Refuse an address that is open to others without a word."""
    if not is_this_machine(host) and not is_guarded:
        raise RequestError(
            f"{host} is not a loopback address and authentication is off; bind to 127.0.0.1, give a "
            "permissions file with --auth, or pass --insecure"
        )


@contextmanager
def hold_port(host: str, port: int, flag: str = "--port") -> Iterator[int]:
    """Keep a port, chosen if 0; `StorageError` if another process has it."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that ended linger on it
        try:
            held.bind((host, port))
        except OSError as error:
            # An unknown name, or an address of another machine, is not fixed by another port.
            wrong = flag if error.errno in _PORT_PROBLEMS else "--host: an address or name of this machine"
            raise StorageError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another {wrong}"
            ) from None
        # From here on it is shared only with processes that set SO_REUSEPORT, as Envoy does.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        yield int(held.getsockname()[1])
