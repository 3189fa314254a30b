"""The broker process on hypercorn, as the supervisor sees it: start, wait, stop.

It has the part of pyvoy's `PyvoyServer` that the supervisor uses, so that everything else is the same on both
servers: the pipe on standard input, the events on standard output, the rules for restarting.
`server/process/hypercorn_process.py` is the other end; its first event reports that its ports are open.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process

from pyvoy import StartupError

_MODULE = "tidemill.server.process.hypercorn_process"
_START_SECONDS = 20.0


class HypercornServer:
    """One broker process on hypercorn."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env
        self._process: Process | None = None
        self._is_stopped = False
        self.listener_port = 0
        self.listener_port_tls: int | None = None

    @property
    def stdout(self) -> asyncio.StreamReader | None:
        return self._process.stdout if self._process is not None else None

    async def start(self) -> None:
        """Return when the ports are open; `StartupError` if they do not open in time."""
        # Without the working directory among the places that modules come from (-P).
        command = (sys.executable, "-P", "-m", _MODULE)
        self._process = await asyncio.create_subprocess_exec(
            *command, stdout=PIPE, env={**os.environ, **self._env}
        )
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_START_SECONDS):
                line = await self._process.stdout.readline()
        except TimeoutError:
            await self.stop()
            raise StartupError(f"the ports were not open after {_START_SECONDS:g} s") from None
        except asyncio.CancelledError:
            await asyncio.shield(self.stop())
            raise
        if not line:
            raise StartupError("the broker process ended before its ports were open")
        ports = json.loads(line)
        self.listener_port, self.listener_port_tls = ports["port"], ports["tls_port"]

    async def wait(self) -> int | None:
        """How it ended: its exit code, negative for a signal, 0 if `stop` ended it."""
        if self._process is None:
            return None
        code = await self._process.wait()
        return 0 if self._is_stopped else code

    async def stop(self) -> None:
        """End the process and wait for that."""
        if self._process is not None and self._process.returncode is None:
            self._is_stopped = True
            self._process.terminate()
            await self._process.wait()
