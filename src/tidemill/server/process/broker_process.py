"""The broker process: the application that Envoy or hypercorn runs, with the broker inside.

Owns the life of that process. It opens the broker while the port already answers "opening", reports events to
its parent on standard output (one JSON object a line: opening, opened, failed, closed), and watches standard
input, a pipe that only its parent holds: when that closes, for whatever reason, it shuts down cleanly: no new
calls, calls in progress answered, the broker closed, the pending messages reported.

It ends itself after a fault: with the event `fault` where opening the directory again cures it (the parent
restarts it), with `failed` where an operator must act. A disk error while opening is such a fault for a
process that was restarted; at the first start it is a failure, so that the operator sees the reason.

Imported only in that process: by pyvoy, as `tidemill.server.process.broker_process:application`, and by
`server/process/hypercorn_process.py`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy.ma  # noqa: F401  `np.unique` imports it: half a tenth of a second of the first step under load

from tidemill.broker.broker import Broker
from tidemill.broker.control.simulated_time import KeptClock
from tidemill.broker.health import Health, Remedy, text_of
from tidemill.broker.identity import require_broker
from tidemill.broker.loop import let_services_in
from tidemill.core.clock import Clock, SystemClock, stopwatch_s
from tidemill.core.errors import DiskError, DiskFullError, TidemillError
from tidemill.core.parent_watch import when_untied
from tidemill.log.disk import RealDisk
from tidemill.server.app import App, Opened
from tidemill.server.flight.flight_opening import FlightService
from tidemill.server.grpc.gateway import Gateway
from tidemill.server.http.http_admin import BackupPlace
from tidemill.server.http.http_api import http_api
from tidemill.server.http.send_batch_endpoint import SendBatchEndpoint
from tidemill.server.process.serve_plan import ServePlan
from tidemill.server.security.authority import Authority, authority_of
from tidemill.server.security.guard import Guard
from tidemill.server.security.live_certificate import CertificateWatch, turn
from tidemill.server.security.rates import Rates
from tidemill.server.send_batch_service import SendBatchService
from tidemill.server.unix.unix_listener import UnixListener
from tidemill.store.without_pandas import keep_pandas_out

logger = logging.getLogger(__name__)

_DRAIN_SECONDS = 10.0
_EXIT_SECONDS = 20.0
_REPORT_EVERY_S = 0.2
_PORT_EVERY_S = 1.0
# Requests make many short-lived objects and no rings worth hurrying for; how many may gather before a look.
_GARBAGE_THRESHOLDS = (20_000, 20, 20)


class BrokerProcess:
    """Opens and closes the broker of the application."""

    def __init__(self, plan: ServePlan) -> None:
        self._plan = plan
        self._rates = Rates(plan.rate_per_client) if plan.rate_per_client else None
        self.app = App(self._start, self.stop)
        self._flight: FlightService | None = None
        self._local: UnixListener | None = None
        self._watches: list[asyncio.Task[None]] = []
        self._opening: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._reported_at_s = 0.0
        # How the server takes up another certificate; this is how Envoy does.
        self.renew_certificate: Callable[[], None] = partial(turn, Path(plan.data))

    # -- opening ----------------------------------------------------------------------------------

    async def _start(self) -> None:
        keep_pandas_out()
        let_services_in()
        # A Ctrl-C in the parent's terminal is for the parent alone: it stops us in order.
        os.setpgid(0, 0)
        loop = asyncio.get_running_loop()
        when_untied(lambda: loop.call_soon_threadsafe(self._begin_stop))
        self._opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        try:
            authority = authority_of(self._plan)
            self.app.guard = Guard(authority, self._rates)
            broker = await asyncio.to_thread(self._open_broker)
            self._flight = await asyncio.to_thread(self._open_flight, broker, authority)
        except (TidemillError, OSError) as error:
            if self._plan.is_again and isinstance(error, DiskError | DiskFullError):
                self._give_up(f"opening: {error}", event="fault")
            else:
                self._give_up(_message_of(error))
            return
        except Exception as error:
            logger.critical("the broker failed to start", exc_info=error)
            self._give_up(
                f"the broker failed to start: {text_of(error)}; see the log above and run tidemill check"
            )
            return
        gateway = Gateway(broker, creates_topics=self._plan.creates_topics)
        http = http_api(broker, gateway.consuming.polls, BackupPlace.of(self._plan))
        self._announce_flight(self._flight, broker)
        self._local = self._open_local(broker, http.batch_endpoint)
        self.app.opened = Opened(broker, gateway, http, http.batch_endpoint)
        self.app.state = "open"
        loop = asyncio.get_running_loop()
        broker.health.when_stopped(lambda: loop.call_soon_threadsafe(self._end_after_fault, broker.health))
        self._watches = self._start_watches(self._flight, broker)
        pipeline = "spark" if self._plan.pipeline_command else "embedded"
        _freeze_startup_objects()
        _report("opened", broker=broker.id, pipeline=pipeline, flight_port=self._flight.port)

    def _give_up(self, message: str, *, event: str = "failed") -> None:
        self.app.state, self.app.reason = "failed", message
        _report(event, message=message)
        _end_process()

    def _open_broker(self) -> Broker:
        directory = Path(self._plan.data)
        if self._plan.broker_before:
            require_broker(RealDisk(), directory, self._plan.broker_before)
        if self._plan.clock != "simulated":
            return self._broker_with(SystemClock())
        clock = KeptClock(RealDisk(), directory, SystemClock().now_ms())
        broker = self._broker_with(clock)
        clock.keep()
        return broker

    def _broker_with(self, clock: Clock) -> Broker:
        return Broker(
            Path(self._plan.data),
            self._plan.settings,
            clock=clock,
            on_progress=self._opening_progress,
            pipeline_command=self._plan.pipeline_command,
            pipeline_problem=self._plan.pipeline_problem,
            last_fault=self._plan.fault_before,
            owner_pid=self._plan.owner_pid,
        )

    def _opening_progress(self, done: int, total: int) -> None:
        """Record recovery progress, for calls that arrive meanwhile and for the parent's terminal."""
        self.app.opening_share = done / max(total, 1)
        if stopwatch_s() - self._reported_at_s > _REPORT_EVERY_S:
            self._reported_at_s = stopwatch_s()
            _report("opening", done=done, total=total)

    def _open_flight(self, broker: Broker, authority: Authority | None) -> FlightService:
        try:
            return FlightService(self._plan, broker, self._rates, authority)
        except (TidemillError, OSError):
            broker.close()
            raise

    def _open_local(self, broker: Broker, batch_endpoint: SendBatchEndpoint) -> UnixListener | None:
        try:
            local = UnixListener(SendBatchService(broker), self.app.guard, self._plan.port)
        except OSError as error:
            logger.warning("no Unix socket, clients use the TCP port: %s", error.strerror or error)
            return None
        batch_endpoint.point_to(local.name)
        return local

    def _announce_flight(self, flight: FlightService, broker: Broker) -> None:
        if flight.port is not None:
            is_tls = self._plan.tls_port is not None
            self.app.facts = {
                **self.app.facts,
                "flight": {"port": flight.port, "tls": is_tls, "broker": broker.id},
            }

    def _start_watches(self, flight: FlightService, broker: Broker) -> list[asyncio.Task[None]]:
        plan, say = self._plan, partial(self._announce_flight, flight, broker)
        found = []
        if plan.tls_port is not None:
            acts = (self.renew_certificate, flight.reopen, say)
            found.append(CertificateWatch(Path(plan.tls_cert), Path(plan.tls_key), acts).run())
        if flight.awaits_port:
            found.append(_open_when_free(flight, say))
        return [asyncio.create_task(watch) for watch in found]

    # -- stopping ---------------------------------------------------------------------------------

    def _begin_stop(self) -> None:
        """The parent has let go of us, or the broker has stopped after a fault."""
        # Should anything hang, the process ends all the same; the log is safe at every moment.
        timer = threading.Timer(_EXIT_SECONDS, os._exit, [1])
        timer.daemon = True
        timer.start()
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop_and_end())

    def _end_after_fault(self, health: Health) -> None:
        """The broker takes no more requests: report the reason to the parent, and end."""
        fault = health.fault
        assert fault is not None
        if self._stopping is None:
            self.app.reason = fault.reason
            if fault.remedy is Remedy.REOPEN:
                _report("fault", message=fault.reason)
            else:
                _report("failed", message=f"the broker stopped: {fault.reason}")
        self._begin_stop()

    async def _stop_and_end(self) -> None:
        await self.stop()
        _end_process()

    async def stop(self) -> None:
        """Stop in order; nothing more to do for one that has stopped."""
        if self._opening is not None:
            await self._opening
        for watch in self._watches:
            watch.cancel()
        opened, self.app.opened = self.app.opened, None
        self.app.state = "failed" if self.app.reason else "stopping"
        if opened is not None:
            if self._flight is not None:
                await asyncio.to_thread(self._flight.close)
            if self._local is not None:
                await asyncio.to_thread(self._local.close, _DRAIN_SECONDS)
            await opened.gateway.drain(_DRAIN_SECONDS)
            try:
                report = await asyncio.to_thread(opened.broker.close)
            except (TidemillError, OSError) as error:  # what was answered is in the log all the same
                if self.app.reason:  # reported before
                    logger.error("the broker did not shut down cleanly: %s", error)
                else:
                    _report("failed", message=f"the broker did not shut down cleanly: {_message_of(error)}")
            else:
                if not self.app.reason:
                    _report("closed", **asdict(report))


async def _open_when_free(flight: FlightService, say: Callable[[], None]) -> None:
    while True:
        if await asyncio.to_thread(flight.open_if_free):
            say()
            return
        await asyncio.sleep(_PORT_EVERY_S)


def _freeze_startup_objects() -> None:
    """Take what lives as long as the process out of the garbage collector's sight.

    A look through all of it stops every thread for tens of milliseconds, the releaser too.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)


def _message_of(error: Exception) -> str:
    """What went wrong and what to do, in one line."""
    if not isinstance(error, OSError):
        return str(error)
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}; check the path of the data directory and its permissions"


def _report(what: str, **facts: Any) -> None:
    line = json.dumps({"event": what, **facts}) + "\n"
    try:
        os.write(1, line.encode())
    except OSError:  # the parent is gone
        return


def _end_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
process = BrokerProcess(ServePlan.from_variable(os.environ))
application = process.app
