"""A broker behind a real HTTP port, in this process: for tests of the client."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from helpers.open_app import OpenApp
from tidemill.broker.broker import Broker
from tidemill.core.clock import Clock
from tidemill.core.config import BrokerSettings

_pause = threading.Event()  # never set


class HttpBroker:
    """One data directory behind one port; stopped and started again at will."""

    def __init__(
        self, directory: Path, clock: Clock | None = None, settings: BrokerSettings | None = None
    ) -> None:
        self._settings = settings or BrokerSettings()
        self._directory = directory
        self._clock = clock
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.endpoint = f"127.0.0.1:{self.port}"

    def start(self) -> HttpBroker:
        self.broker = Broker(self._directory, self._settings, clock=self._clock)
        config = uvicorn.Config(
            OpenApp(self.broker),
            port=self.port,
            log_level="critical",
            ws="none",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            _pause.wait(0.005)
        return self

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self.broker.close()


@contextmanager
def http_broker(
    directory: Path, clock: Clock | None = None, settings: BrokerSettings | None = None
) -> Iterator[HttpBroker]:
    served = HttpBroker(directory, clock, settings).start()
    try:
        yield served
    finally:
        served.stop()
