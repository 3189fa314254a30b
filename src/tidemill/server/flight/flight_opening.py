"""Opens the Flight endpoint of a plan: its address, certificate and authentication.

Owns the endpoint's life. Flight's server reads its certificate only once, so for a new one the endpoint is
closed and opened again on the same port: streams in progress end with "retry later", as at a restart. Where
the certificate is not valid (half replaced when the broker restarted), it stays closed until it is; nothing
else of the broker waits for that. Nor for the port, which Flight's server cannot share, so that it cannot be
reserved as the others are (`reserved_port.py`): a process that takes it while the broker restarts keeps
Flight closed, and nothing else, until it releases the port.
"""

from __future__ import annotations

import dataclasses
import logging
import socket
import threading
from pathlib import Path

import pyarrow as pa

from tidemill.broker.broker import Broker
from tidemill.core.errors import StorageError, TidemillError
from tidemill.server.flight.flight_connections import FlightConnections
from tidemill.server.flight.flight_server import FlightServer
from tidemill.server.flight.flight_traffic import CALLS_MAX, FlightLimits
from tidemill.server.process.serve_plan import FLIGHT_PORT, ServePlan
from tidemill.server.security.authority import Authority
from tidemill.server.security.live_certificate import check_certificate
from tidemill.server.security.rates import Rates

logger = logging.getLogger(__name__)


class FlightService:
    """The Flight server and the limits of its connections, if the plan has one. Thread-safe."""

    def __init__(
        self,
        plan: ServePlan,
        broker: Broker,
        rates: Rates | None = None,
        authority: Authority | None = None,
    ) -> None:
        self._plan = plan
        self._broker = broker
        self._rates = rates
        self._authority = authority
        self._lock = threading.Lock()  # protects all below
        self._server: FlightServer | None = None
        self._connections: FlightConnections | None = None
        self._is_closed = False
        self.awaits_port = False  # another process has it: opened when it is free
        try:
            if plan.tls_port is not None:
                check_certificate(Path(plan.tls_cert), Path(plan.tls_key))
        except TidemillError as error:
            logger.error("TLS and Flight are unavailable until the certificate is valid: %s", error)
        else:
            self._open_at_start()

    @property
    def port(self) -> int | None:
        """Where it listens; None where it does not."""
        return self._plan.flight_port if self._connections is not None else None

    def _open_at_start(self) -> None:
        try:
            self._open()
        except StorageError as error:
            if not self._plan.is_again:  # after a restart no operator can choose another
                raise
            self.awaits_port = True
            logger.error("Flight is unavailable until its port is free: %s", error)

    def open_if_free(self) -> bool:
        """Open it where another process had its port; False while it still has."""
        with self._lock:
            if self.awaits_port and self._server is None and not self._is_closed:
                try:
                    self._open()
                except (StorageError, OSError):  # the second: its certificate is being replaced
                    return False
                logger.warning("Flight listens on port %s", self.port)
            self.awaits_port = False
        return True

    def _open(self) -> None:
        self._server = open_flight(self._plan, self._broker, self._rates, self._authority)
        if self._server is not None:
            # Whatever comes, it stays where callers have found it.
            self._plan = dataclasses.replace(self._plan, flight_port=self._server.port)
            traffic, limits = self._server.traffic, self._server.limits
            self._connections = FlightConnections(
                self._server.port, self._plan.connections_max, traffic, limits=limits
            )
            self._connections.start()

    def reopen(self) -> None:
        """Go on with the certificate as it is now; `StorageError` if the port cannot be had again yet."""
        with self._lock:
            if not self._is_closed:
                self._shut()
                self._open()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._shut()

    def _shut(self) -> None:
        if self._connections is not None:
            self._connections.stop()
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._connections is not None:
            # Streams still open by now are idle or not being read; the process cannot end before they do.
            self._connections.shut_all()


def open_flight(
    plan: ServePlan, broker: Broker, rates: Rates | None, authority: Authority | None
) -> FlightServer | None:
    """The Flight server, listening; None where the plan has none.

    A configured port must be free. Without one, the port of the previous process is taken, the default, or
    any if they are in use.
    """
    if plan.flight_port is not None and plan.flight_port < 0:
        return None
    tls = None
    if plan.tls_port is not None:
        tls = (Path(plan.tls_cert).read_bytes(), Path(plan.tls_key).read_bytes())
    limits = FlightLimits(rates, min(CALLS_MAX, plan.connections_max))
    ports: tuple[int, ...] = (FLIGHT_PORT, 0) if plan.flight_port is None else (plan.flight_port,)
    if plan.flight_port_before is not None and not plan.flight_port:
        ports = (plan.flight_port_before, *ports)
    for port in ports:
        if _is_free(plan.host, port):
            try:
                return FlightServer(broker, plan.host, port, authority=authority, tls=tls, limits=limits)
            except pa.ArrowException:  # what Flight makes of a port that was taken meanwhile
                continue
    wanted = f"{plan.host}:{plan.flight_port or FLIGHT_PORT}"
    raise StorageError(f"cannot listen on {wanted} for Flight; choose another --flight-port, or -1 for none")


def _is_free(host: str, port: int) -> bool:
    # Checked first, because the server would print the error to the terminal.
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
