"""`tidemill bench server`: what a served broker does for its clients on this machine, durable.

Starts brokers of its own, loads them from other processes, checks what was stored, and prints the figures
beside their targets. A missed target is a figure, not a failure: the exit code is 0.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from tidemill.cli.bench.figures import SERVER_FIGURES, print_figures
from tidemill.cli.bench.measuring import DataOption, JsonOption, QuickOption, work_directory
from tidemill.cli.bench.server_client import (
    measure_consumer,
    measure_flight,
    measure_receive,
    measure_threads,
)
from tidemill.cli.bench.server_load import OWN_GENERATOR, load
from tidemill.cli.child_broker import serving
from tidemill.cli.output import console
from tidemill.cli.planned_bar import PlannedStep, planned_bar
from tidemill.client.client import Client
from tidemill.core.errors import RequestError, StorageError
from tidemill.core.limits import HOUR_MS

_IN_FLIGHT = 64
_THREADS = 32
# Due during the load, so that releasing them is part of it.
_HALF_LOAD_DELAY_MS = 2_000
_RELEASING = "send_p99_ms_while_releasing"


@dataclass(frozen=True, slots=True)
class _Scale:
    seconds: float
    receive_count: int
    flight_count: int
    rest_count: int


_FULL = _Scale(8.0, 40_000, 2_000_000, 300)
_QUICK = _Scale(1.0, 2_000, 100_000, 50)


def server(
    data: DataOption = None,
    is_json: JsonOption = False,
    quick: QuickOption = False,
    ghz: Annotated[
        bool, typer.Option("--ghz", help="Load gRPC with ghz, which must be on the path.")
    ] = False,
    http_server: Annotated[
        str, typer.Option("--server", help="What serves the port, as for `serve`.")
    ] = "auto",
) -> None:
    """Measure a served broker: gRPC, the Python client, Flight. Some minutes."""
    if ghz and shutil.which("ghz") is None:
        raise RequestError("ghz is not on the path; install it or leave out --ghz")
    scale = _QUICK if quick else _FULL
    figures: dict[str, float] = {}
    with work_directory(data) as directory, planned_bar(_plan(scale)) as next_step:
        with serving(directory / "speed", http_server) as endpoint:
            _measure_speed(endpoint, scale, figures, next_step, with_ghz=ghz)
        # A new broker, so that its lateness is of this load alone.
        with serving(directory / "half", http_server) as endpoint:
            _measure_half_load(endpoint, scale, figures, with_ghz=ghz)
        next_step()
    title = "the server, durable"
    print_figures(title, SERVER_FIGURES, figures, is_json=is_json, is_quick=quick, also=[_RELEASING])
    if not is_json:
        screen = console()
        screen.print(f"The load on gRPC came from {'ghz' if ghz else OWN_GENERATOR}, on the same machine.")
        screen.print(
            "At half load, with as many messages falling due as are sent, the p99 of a send is "
            f"{figures[_RELEASING]:,.1f} ms."
        )


def _plan(scale: _Scale) -> list[PlannedStep]:
    """The steps and their estimated seconds."""
    start_s = 3.0  # a broker, or the processes that load it
    return [
        PlannedStep("a waiting consumer", start_s + scale.rest_count / 10),
        PlannedStep("single sends over gRPC", start_s + scale.seconds),
        PlannedStep("single sends of Python threads", start_s + scale.seconds),
        PlannedStep("receiving", start_s + scale.receive_count / 5_000),
        PlannedStep("bulk over Flight", start_s + scale.flight_count / 400_000),
        PlannedStep("half load", 2 * (start_s + scale.seconds + _HALF_LOAD_DELAY_MS / 1000)),
    ]


def _measure_speed(
    endpoint: str,
    scale: _Scale,
    figures: dict[str, float],
    next_step: Callable[[], None],
    *,
    with_ghz: bool,
) -> None:
    """Maximum rates, one after another, on one broker."""
    with Client(endpoint) as client:
        figures["consumer_late_p99_ms"] = measure_consumer(endpoint, scale.rest_count)
        next_step()
        client.topics.create("grpc")
        before = client.status().sent
        found = load(
            endpoint,
            "grpc",
            in_flight=_IN_FLIGHT,
            seconds=scale.seconds,
            delay_ms=HOUR_MS,
            with_ghz=with_ghz,
        )
        if client.status().sent - before != found.sent:
            raise StorageError("other messages are stored than were answered; the figures mean nothing")
        figures["grpc_send_per_s"] = found.per_s
        next_step()
        figures["client_send_per_s"] = measure_threads(endpoint, _THREADS, scale.seconds)
        next_step()
        figures["receive_ack_per_s"] = measure_receive(endpoint, scale.receive_count)
        next_step()
        figures["flight_send_per_s"] = measure_flight(endpoint, scale.flight_count)
        next_step()


def _measure_half_load(endpoint: str, scale: _Scale, figures: dict[str, float], *, with_ghz: bool) -> None:
    """At half the speed just seen: the same messages, then such as fall due while the load goes on."""
    rate = figures["grpc_send_per_s"] / 2
    with Client(endpoint) as client:
        client.topics.create("half")
        for name, delay_ms in (("send_p99_ms_half_load", HOUR_MS), (_RELEASING, _HALF_LOAD_DELAY_MS)):
            found = load(
                endpoint,
                "half",
                in_flight=_IN_FLIGHT,
                seconds=scale.seconds + _HALF_LOAD_DELAY_MS / 1000,
                rate=rate,
                delay_ms=delay_ms,
                with_ghz=with_ghz,
            )
            figures[name] = found.percentile_ms(0.99)
        figures["release_late_p99_ms_half_load"] = client.status().lateness_p99_ms
