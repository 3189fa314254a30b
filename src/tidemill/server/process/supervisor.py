"""The supervisor: owns the broker process, restarts it after a crash, stops it cleanly.

Owns the pipe that keeps the broker process alive: the broker process ends when the pipe closes, so none
survives the supervisor, however that ends. A broker process that ends by a signal (killed, crashed), also
while it starts, is restarted after a growing pause, and so is one that takes too long to start, as it may on
a busy machine. So is one that ended itself after a fault that opening the directory again cures (`fault`),
also where the next opening meets a disk error. One that reported `failed` (a failed sync, a damaged log, a
directory in use, one that cannot be opened at the first start) is not, because an operator must act.

A missing data directory (removed, renamed, unmounted) is waited for, and none is created in its place: an
empty broker would look healthy. Exiting instead would not help, since a service manager would start just that
broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyvoy import StartupError

from tidemill.broker.identity import require_broker
from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import StorageError, TidemillError
from tidemill.log.disk import RealDisk
from tidemill.server.process.envoy import BoundedServer
from tidemill.server.process.hypercorn_server import HypercornServer
from tidemill.server.process.serve_plan import ServePlan
from tidemill.server.security.live_certificate import secret_for_envoy

_APPLICATION = "tidemill.server.process.broker_process:application"
_STOP_SECONDS = 30.0
_SLOW_STARTS_MAX = 6  # of the first broker process; the server library gives each some ten seconds
_PAUSE_SECONDS_FIRST = 0.2
_PAUSE_SECONDS_MAX = 10.0
# A broker that served this long was well: the next pause is the first one again.
_WELL_SECONDS = 5.0

OnEvent = Callable[[str, dict[str, Any]], None]
Server = BoundedServer | HypercornServer


class Supervisor:
    """Runs one broker process until it is asked to stop. `on_event` receives the events."""

    def __init__(self, plan: ServePlan, on_event: OnEvent) -> None:
        self._plan = plan
        self._on_event = on_event
        self._stop = asyncio.Event()
        self._lifeline: int | None = None
        self._port = plan.port
        self._tls_port = plan.tls_port
        self._flight_port: int | None = None
        self._broker_id = ""  # of the broker that was served last
        self._has_failed = False
        self._fault = ""  # why the present broker process ended itself, to be started again
        self._last_fault = ""
        self._has_served = False
        self._opened_at_s: float | None = None  # when the present broker began to serve
        self._slow_starts = 0
        self._was_slow = False  # the last broker process did not start in time

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        pause_s = _PAUSE_SECONDS_FIRST
        while True:
            code = await self._run_once()
            if self._opened_at_s is not None and stopwatch_s() - self._opened_at_s > _WELL_SECONDS:
                pause_s = _PAUSE_SECONDS_FIRST
            if self._stop.is_set() or self._has_failed or (code >= 0 and not self._fault):
                return 0 if self._stop.is_set() and not self._has_failed else 1
            facts = {"signal": -code, "was_slow": self._was_slow, "fault": self._fault}
            self._on_event("restarting", {**facts, "pause_s": pause_s})
            pause_s = await self._paused(pause_s)
            await self._wait_for_directory()
            if self._stop.is_set():
                return 0

    async def _paused(self, pause_s: float) -> float:
        """Wait, or until asked to stop; returns how long to wait the next time."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), pause_s)
        return min(_PAUSE_SECONDS_MAX, pause_s * 2)

    async def _wait_for_directory(self) -> None:
        """Return when the directory of the broker that was served is there, or when asked to stop."""
        pause_s, said = _PAUSE_SECONDS_FIRST, ""
        while not self._stop.is_set() and (problem := self._why_not_again()):
            if problem != said:
                self._on_event("away", {"message": problem})
                said = problem
            pause_s = await self._paused(pause_s)

    def _why_not_again(self) -> str:
        """What is wrong with the directory; nothing if the broker can be started on it again."""
        if self._broker_id:
            try:
                require_broker(RealDisk(), Path(self._plan.data), self._broker_id)
            except (TidemillError, OSError) as error:
                return str(error)
        return ""

    async def _run_once(self) -> int:
        """One life of the broker process; returns how it ended, negative for a signal."""
        server = self._new_server()
        self._was_slow = False
        self._fault = ""
        self._opened_at_s = None
        read_end, self._lifeline = os.pipe()
        # The server library leaves standard input alone, so the child inherits this one: the pipe.
        os.dup2(read_end, 0, inheritable=True)
        os.close(read_end)
        try:
            await server.start()
        except StartupError as error:
            os.close(self._lifeline)
            return await self._code_of_false_start(server, error)
        self._has_served = True
        self._port = server.listener_port
        self._tls_port = server.listener_port_tls
        listening = asyncio.create_task(self._listen(server))
        ended = asyncio.create_task(server.wait())
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        os.close(self._lifeline)
        done, _ = await asyncio.wait((ended,), timeout=_STOP_SECONDS)
        if not done:
            await server.stop()
        await listening
        return (await ended) or 0

    async def _code_of_false_start(self, server: Server, error: StartupError) -> int:
        """The exit code of a broker process that failed to start; negative where a restart may succeed."""
        await self._listen(server, has_opened=False)
        if self._has_failed:  # the broker gave up before the server started, and has reported why
            return 1
        code = await server.wait() or 0
        if self._fault:
            return code
        self._was_slow = code == 0
        self._slow_starts += self._was_slow
        if self._was_slow and (self._has_served or self._slow_starts < _SLOW_STARTS_MAX):
            return -signal.SIGTERM  # by which the server library ended it
        if code < 0:
            return code
        raise StorageError(f"server failed to start: {error}; see the log above") from None

    def _new_server(self) -> Server:
        plan = self._plan
        if plan.server == "hypercorn":
            return HypercornServer(self._plan_of_next().as_variable())
        return BoundedServer(
            _APPLICATION,
            address=plan.host,
            port=self._port,
            connections_max=plan.connections_max,
            tls_port=self._tls_port,
            secret=secret_for_envoy(Path(plan.data), Path(plan.tls_cert), Path(plan.tls_key))
            if plan.tls_cert
            else None,
            lifespan=True,
            worker_threads=1,
            env=self._plan_of_next().as_variable(),
            stdout=subprocess.PIPE,
            stderr=None,
            additional_envoy_args=["--concurrency", "1"],
        )

    def _plan_of_next(self) -> ServePlan:
        return replace(
            self._plan,
            flight_port_before=self._flight_port,
            broker_before=self._broker_id,
            fault_before=self._last_fault,
            is_again=self._has_served,
        )

    async def _listen(self, server: Server, *, has_opened: bool = True) -> None:
        """Pass on the events of the broker process; if the server did not start, only why it gave up."""
        assert server.stdout is not None
        async for line in server.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # not an event
            what = event.pop("event")
            self._has_failed = self._has_failed or what == "failed"
            if what == "fault":
                self._fault = self._last_fault = event["message"]
            # Callers that know it by its number find it there again.
            self._flight_port = event.get("flight_port") or self._flight_port
            self._broker_id = event.get("broker") or self._broker_id
            if has_opened and what == "opened":
                self._opened_at_s = stopwatch_s()
            if has_opened or what == "failed":
                places = {"host": self._plan.host, "port": self._port, "tls_port": self._tls_port}
                self._on_event(what, {**event, **places})
