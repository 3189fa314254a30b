"""Another peer of `client_send_per_s`: the same threads put the same messages into a real beanstalkd.

It is a small queue server made for delayed jobs, and the quickest of its kind: a line of text there, a line
back. So the threads speak to it by sockets of their own, without a library. Measured with every put synced to
its log, and with no log at all, where a message is in memory alone.
"""

from __future__ import annotations

import shutil
import signal
import socket
from pathlib import Path

from benchmarks.socket_place import socket_place
from benchmarks.tied_server import TiedServer
from tidemill.cli.bench.measuring import in_threads
from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import StorageError

_PUT = b"put 0 3600 60 100\r\n%b\r\n" % bytes(100)  # priority, delay, time to run, size
_PUT_ANSWER = b"INSERTED "
_READ_BYTES = 65_536
_PATIENCE_S = 120.0


def has_beanstalkd() -> bool:
    return shutil.which("beanstalkd") is not None


def measure_beanstalkd(directory: Path, thread_count: int, seconds: float, *, is_durable: bool) -> float:
    """Single puts a second of so many threads, each with a connection of its own."""
    directory.mkdir()
    log = ["-b", str(directory), "-f", "0"] if is_durable else []
    with socket_place() as place:
        address = f"{place}/socket"
        command = ["beanstalkd", "-l", f"unix:{address}", *log]
        process = TiedServer(command, directory.with_suffix(".log"), signal.SIGKILL)
        try:
            process.wait_until_open("beanstalkd", lambda: Path(address).exists())
            return _puts_per_s(address, thread_count, seconds)
        finally:
            process.stop()


def _puts_per_s(address: str, thread_count: int, seconds: float) -> float:
    counts = [0] * thread_count
    until_s = stopwatch_s() + seconds

    def work(index: int) -> None:
        with _connected(address) as server:
            while stopwatch_s() < until_s:
                server.sendall(_PUT)
                if not (said := server.recv(_READ_BYTES)).startswith(_PUT_ANSWER):
                    raise StorageError(f"beanstalkd answered {said[:80]!r} to a put")
                counts[index] += 1

    took_s = in_threads(thread_count, work)
    if _waiting(address) != sum(counts):
        raise StorageError("beanstalkd holds other messages than it answered; the figure means nothing")
    return sum(counts) / took_s


def _waiting(address: str) -> int:
    with _connected(address) as server:
        server.sendall(b"stats\r\n")
        said = b""
        while b"current-jobs-delayed: " not in said or not said.endswith(b"\r\n"):
            piece = server.recv(_READ_BYTES)
            if not piece:
                raise StorageError("beanstalkd does not say what it holds")
            said += piece
    return int(said.partition(b"current-jobs-delayed: ")[2].split(b"\n")[0])


def _connected(address: str) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.settimeout(_PATIENCE_S)
    server.connect(address)
    return server
