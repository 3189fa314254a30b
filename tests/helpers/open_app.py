"""The application of an open broker, without processes and ports."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from tidemill.broker.broker import Broker
from tidemill.server.app import App, Opened
from tidemill.server.http.http_api import HttpApi, http_api
from tidemill.server.long_poll import LongPolls


class OpenApp(App):
    """The application that a broker process serves; it has no gRPC."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(on_shutdown=self._close)
        self.polls = LongPolls(broker.store.notifier, broker.receiver.has_news)
        self.http: HttpApi = http_api(broker, self.polls)
        gateway: Any = SimpleNamespace(call_counts=Counter(), calls_under_way=0, sessions=())
        self.opened = Opened(broker, gateway, self.http, self.http.batch_endpoint)
        self.state = "open"

    async def _close(self) -> None:
        self.polls.close()
