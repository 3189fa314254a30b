"""A broker to measure the doors of: embedded runner, every door open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemill.cli.bench.serve_process import ServeProcess


@contextmanager
def serving(directory: Path, server: str = "auto") -> Iterator[str]:
    """The endpoint of a broker that serves this directory until the block ends."""
    serve = ServeProcess(directory, "--flight-port", "0", "--pipeline", "embedded", "--server", server)
    try:
        serve.start()
        yield serve.endpoint
    finally:
        serve.stop()
