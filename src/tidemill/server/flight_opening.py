"""Opens the Flight door that a plan asks for: where, with which certificate, asking whom."""

from __future__ import annotations

import socket
from pathlib import Path

import pyarrow as pa

from tidemill.broker.broker import Broker
from tidemill.core.errors import StorageError
from tidemill.server.flight_auth import FileAuthorizer
from tidemill.server.flight_door import FlightDoor
from tidemill.server.flight_gate import CALLS_MAX, FlightGate
from tidemill.server.rates import Rates
from tidemill.server.serve_plan import FLIGHT_PORT, ServePlan


def open_flight(plan: ServePlan, broker: Broker, rates: Rates | None = None) -> FlightDoor | None:
    """The door, listening; None where the plan has none.

    A port that was asked for must be free. Where none was, the usual one is taken, or any if it is in use.
    """
    if plan.flight_port is not None and plan.flight_port < 0:
        return None
    authorizer = FileAuthorizer(Path(plan.auth_file)) if plan.auth_file else None
    tls = None
    if plan.tls_port is not None:
        tls = (Path(plan.tls_cert).read_bytes(), Path(plan.tls_key).read_bytes())
    gate = FlightGate(rates, min(CALLS_MAX, plan.connections_max))
    ports = (FLIGHT_PORT, 0) if plan.flight_port is None else (plan.flight_port,)
    for port in ports:
        if _is_free(plan.host, port):
            try:
                return FlightDoor(broker, plan.host, port, authorizer=authorizer, tls=tls, gate=gate)
            except pa.ArrowException:  # what Flight makes of a port that was taken meanwhile
                continue
    raise StorageError(
        f"cannot listen on {plan.host}:{ports[0]} for Flight; choose another --flight-port, or -1 for none"
    )


def _is_free(host: str, port: int) -> bool:
    # Asked first, because the server would write about it to the terminal.
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
