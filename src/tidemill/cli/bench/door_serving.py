"""A `tidemill serve` for a measurement: started in a process of its own, waited for, stopped in order."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemill.client.client import Client
from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import StorageError, TidemillError

_READY_S = 60.0
_STOP_S = 40.0


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """The endpoint of a broker that serves this directory until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "tidemill.cli.main", "serve", "--data", str(directory)]
    command += ["--port", str(port), "--flight-port", "0", "--pipeline", "embedded"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _wait_until_open(f"127.0.0.1:{port}", process)
        yield f"127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_open(endpoint: str, process: subprocess.Popen[bytes]) -> None:
    until_s = stopwatch_s() + _READY_S
    with Client(endpoint, retry_for=0) as client:
        while stopwatch_s() < until_s and process.poll() is None:
            try:
                client.status()
            except TidemillError:
                threading.Event().wait(0.05)
            else:
                return
    raise StorageError("the broker to measure did not open; see above")
