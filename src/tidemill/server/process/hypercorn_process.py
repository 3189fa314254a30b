"""The broker process on hypercorn: the same application, for a Python without the library that Envoy needs.

Owns the ports, opened before anything else is loaded, and those limits of `server/process/envoy.py` that
hypercorn has too; docs/security.md lists what it lacks. Started by `server/process/hypercorn_server.py` only.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import ssl
import sys
from typing import Any

import uvloop
from hypercorn.asyncio import serve
from hypercorn.config import Config

from tidemill.core.limits import KIB
from tidemill.server.process.hypercorn_compat import drop_what_comes_late, watching_departures
from tidemill.server.process.serve_plan import ServePlan

logger = logging.getLogger(__name__)

_BACKLOG = 1024
_HEADER_BYTES_MAX = 60 * KIB
_STREAMS_PER_CONNECTION_MAX = 2_000
_HANDSHAKE_SECONDS = 10
# What a telemetry stream may be silent for, as under Envoy; here it holds for the whole connection.
_IDLE_SECONDS = 900
# hypercorn closes a connection after so many requests, and breaks those under way on it.
_REQUESTS_PER_CONNECTION_MAX = sys.maxsize
_GRACE_SECONDS = 3.0


class _Config(Config):
    """hypercorn's configuration, with a TLS context whose certificate can be replaced."""

    def __init__(self) -> None:
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self._tls.set_alpn_protocols(self.alpn_protocols)

    def create_ssl_context(self) -> ssl.SSLContext:
        try:
            self.load_certificate()
        except OSError as error:  # it is being replaced; the port answers no handshake until it has been
            logger.error("TLS is unavailable until its certificate is valid: %s", error)
        return self._tls

    def load_certificate(self) -> None:
        """Use the certificate's files as they are now, for connections from now on."""
        assert self.certfile is not None
        self._tls.load_cert_chain(self.certfile, self.keyfile)


def _listening(host: str, port: int) -> socket.socket:
    """A listening socket beside the one that the supervisor holds the port with."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    # The connections have this from it; the port could not be held again while one of them lingers.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.bind((host, port))
    listener.listen(_BACKLOG)
    return listener


def _config(plan: ServePlan, plain: socket.socket, tls: socket.socket | None) -> _Config:
    config = _Config()
    config.bind = [f"fd://{plain.detach()}"]
    if tls is not None:
        config.insecure_bind, config.bind = config.bind, [f"fd://{tls.detach()}"]
        config.certfile, config.keyfile = plan.tls_cert, plan.tls_key
    config.backlog = _BACKLOG
    config.errorlog = logging.getLogger("hypercorn")  # so that it is written as the broker's own lines are
    config.h11_max_incomplete_size = _HEADER_BYTES_MAX
    config.h2_max_header_list_size = _HEADER_BYTES_MAX
    config.h2_max_concurrent_streams = _STREAMS_PER_CONNECTION_MAX
    config.ssl_handshake_timeout = _HANDSHAKE_SECONDS
    config.keep_alive_timeout = _IDLE_SECONDS
    config.read_timeout = _IDLE_SECONDS
    config.keep_alive_max_requests = _REQUESTS_PER_CONNECTION_MAX
    return config


async def _serve(config: _Config) -> None:
    # Imported with the ports open: it takes a second, and builds the broker process of this plan.
    from tidemill.server.process.broker_process import process

    process.renew_certificate = config.load_certificate
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    drop_what_comes_late()
    application: Any = watching_departures(process.app)  # our types for ASGI are wider than hypercorn's
    # Never asked to shut down: it would reset calls that the application refuses with an error text, and wait
    # for every
    # open connection. What is under way is ended by the application, in order; then the rest may go.
    never = asyncio.Event()
    serving = asyncio.create_task(serve(application, config, shutdown_trigger=never.wait, mode="asgi"))
    ending = asyncio.create_task(ended.wait())
    await asyncio.wait((serving, ending), return_when=asyncio.FIRST_COMPLETED)
    await process.stop()
    await _close_connections()
    if serving.done() and not serving.cancelled():
        await serving  # it did not end by itself without a reason


async def _close_connections() -> None:
    """Close what is open, with its last bytes sent, but do not wait for long for who does not read them."""
    # Python 3.11 reports each connection that is cancelled as an error.
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.wait(others, timeout=_GRACE_SECONDS)


def main() -> None:
    plan = ServePlan.from_variable(os.environ)
    plain = _listening(plan.host, plan.port)
    tls = _listening(plan.host, plan.tls_port) if plan.tls_port is not None else None
    ports = {
        "event": "listening",
        "port": plain.getsockname()[1],
        "tls_port": tls.getsockname()[1] if tls is not None else None,
    }
    os.write(1, json.dumps(ports).encode() + b"\n")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(_config(plan, plain, tls)))


if __name__ == "__main__":
    main()
