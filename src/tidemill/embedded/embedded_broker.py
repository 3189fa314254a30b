"""A broker in this process that is used like a client: the same verbs, parameters and answers.

    with tidemill.open("data") as broker:
        result = broker.send("orders", b"close order 17", delay="30m", key="order-17")
        broker.cancel(result.handle)

Owns nothing but the broker it opens and closes. There is no request on the way, so nothing is retried: a
`BusyError` is raised at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tidemill.broker.broker import Broker
from tidemill.broker.embedded import open_broker
from tidemill.broker.query.views import CloseReport
from tidemill.client.client import BlockingVerbs
from tidemill.client.operations import Carrier
from tidemill.client.send.isolate_bad_message import send_parted, sent_in_requests
from tidemill.client.verb import finished
from tidemill.core.clock import Clock
from tidemill.core.model import Draft, SendResult
from tidemill.core.send_answers import Answer
from tidemill.embedded.embedded_operations import EmbeddedOperations
from tidemill.embedded.embedded_tables import EmbeddedTables

T = TypeVar("T")


class EmbeddedBroker(BlockingVerbs):
    """An open broker with the verbs of `Client`. Thread-safe; close it or use it as a context manager."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        tables = EmbeddedTables(broker)
        self._is_closed = False
        carrier = Carrier(
            _no_request, _at_once, self._sent_many, self._send_many, lambda: tables, lambda: self._is_closed
        )
        self._offer(EmbeddedOperations(broker, carrier), awaits=False)

    def _send(self, draft: Draft) -> SendResult:
        (answer,) = self.broker.send_each([draft])
        if isinstance(answer, SendResult):
            return answer
        raise answer

    def _send_many(self, drafts: Iterable[Draft]) -> list[Answer]:
        return finished(self._sent_many(drafts))

    async def _sent_many(self, drafts: Iterable[Draft]) -> list[Answer]:
        return await sent_in_requests(drafts, self._sent_batch)

    async def _sent_batch(self, drafts: Sequence[Draft]) -> list[Answer]:
        return send_parted(self.broker.send_each, drafts)

    def close(self) -> CloseReport:
        """Stop the broker, make everything safe, and say what is still waiting."""
        self._is_closed = True
        return self.broker.close()


async def _at_once(act: Callable[..., T], *args: Any) -> T:
    return act(*args)


async def _no_request(call: Any) -> Any:
    raise AssertionError(f"an embedded broker has no operation for {call.method} {call.path}")


def open_embedded(directory: str | Path, *, clock: Clock | None = None, **settings: Any) -> EmbeddedBroker:
    """Open (or make) a data directory and run a broker on it in this process.

    It has the verbs of `Client`. Settings are those of `BrokerSettings` and the command line, durations as
    text: `retention="7d"`, `lead="10s"`. Raises `DirectoryLockedError` if another process has the directory.
    """
    return EmbeddedBroker(open_broker(directory, clock=clock, **settings))
