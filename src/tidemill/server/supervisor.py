"""The supervisor: owns the broker process, restarts it when it was killed, stops it in order.

Owns the pipe that keeps the broker process alive: the broker process ends when the pipe closes, so none
survives us, however we end. A broker process that ends by a signal (killed, crashed), also while it starts,
is started again after a growing pause, and so is one that takes too long to start again; one that gave up by
itself (a failed sync, a directory in use) is not, because only a person can tell what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyvoy import PyvoyServer, StartupError

from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import RequestError, StorageError
from tidemill.server.backup_place import LOOPBACK
from tidemill.server.envoy import BoundedServer
from tidemill.server.live_certificate import secret_for_envoy
from tidemill.server.serve_plan import ServePlan

_APPLICATION = "tidemill.server.broker_process:application"
_STOP_SECONDS = 30.0
_PORT_PROBLEMS = (errno.EADDRINUSE, errno.EACCES)
_PAUSE_SECONDS_FIRST = 0.2
_PAUSE_SECONDS_MAX = 10.0
# A broker that lived this long was well: the next pause is the first one again.
_WELL_SECONDS = 60.0

Say = Callable[[str, dict[str, Any]], None]


def check_address(host: str, port: int, *, is_insecure: bool, flag: str = "--port") -> int:
    """Refuse an address that is open to others without a word, or taken. Returns the port, chosen if 0."""
    if host not in LOOPBACK and not is_insecure:
        raise RequestError(
            f"{host} is reachable from outside and nobody would be asked who they are; "
            "bind to 127.0.0.1, give a permissions file with --auth, or say --insecure"
        )
    # Envoy would share a taken port with its holder, and half the calls would go astray.
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            # A name that is none, or an address of another machine, is not mended by another port.
            wrong = flag if error.errno in _PORT_PROBLEMS else "--host: an address or name of this machine"
            raise StorageError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another {wrong}"
            ) from None
        return int(probe.getsockname()[1])


class Supervisor:
    """Runs one broker process until told to stop. `say` hears what happens."""

    def __init__(self, plan: ServePlan, say: Say) -> None:
        self._plan = plan
        self._say = say
        self._stop = asyncio.Event()
        self._lifeline: int | None = None
        self._port = plan.port
        self._tls_port = plan.tls_port
        self._flight_port: int | None = None
        self._has_failed = False
        self._has_served = False

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        pause_s = _PAUSE_SECONDS_FIRST
        while True:
            began_s = stopwatch_s()
            code = await self._run_once()
            if stopwatch_s() - began_s > _WELL_SECONDS:
                pause_s = _PAUSE_SECONDS_FIRST
            if self._stop.is_set() or code >= 0:
                return 0 if self._stop.is_set() and not self._has_failed else 1
            self._say("restarting", {"signal": -code, "pause_s": pause_s})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause_s)
            if self._stop.is_set():
                return 0
            pause_s = min(_PAUSE_SECONDS_MAX, pause_s * 2)

    async def _run_once(self) -> int:
        """One life of the broker process; returns how it ended, negative for a signal."""
        server = self._new_server()
        read_end, self._lifeline = os.pipe()
        # The server library leaves standard input alone, so the child gets ours: the pipe.
        os.dup2(read_end, 0, inheritable=True)
        os.close(read_end)
        try:
            await server.start()
        except StartupError as error:
            os.close(self._lifeline)
            await self._listen(server)
            if self._has_failed:  # the broker gave up sooner than the door was there, and has said why
                return 1
            code = await server.wait() or 0
            if code == 0 and self._has_served:  # it was ended for being slow: the machine is busy, perhaps
                code = -signal.SIGTERM
            if code < 0:
                return code
            raise StorageError(f"the door did not open: {error}; see the log above") from None
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

    def _new_server(self) -> PyvoyServer:
        plan = self._plan
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
            env=replace(plan, flight_port_before=self._flight_port, is_again=self._has_served).as_variable(),
            stdout=subprocess.PIPE,
            stderr=None,
            additional_envoy_args=["--concurrency", "1"],
        )

    async def _listen(self, server: PyvoyServer) -> None:
        """Pass on what the broker process tells."""
        assert server.stdout is not None
        async for line in server.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # not ours
            self._has_failed = self._has_failed or event["event"] == "failed"
            # Callers that know it by its number find it there again.
            self._flight_port = event.get("flight_port") or self._flight_port
            self._say(
                event.pop("event"),
                {**event, "host": self._plan.host, "port": self._port, "tls_port": self._tls_port},
            )
