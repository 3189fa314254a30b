"""`Worker`: functions that are called with messages.

    app = tidemill.Worker(group="closers")

    @app.on("orders")
    def close_order(message: tidemill.Message) -> None:
        ...                       # returns: acknowledged; raises: comes again later

    app.run()                     # until SIGTERM or Ctrl-C; what is in hand is finished first

Owns fetching, the threads that call the functions, leases and retries. A message whose function raises is
put off, longer with every attempt, until its group's attempts are used up and it goes to the dead letters.
While a function runs, the lease of its message is renewed, so a slow function is not overtaken by itself.

Invariants: nothing is acknowledged before its function has returned; `stop` loses nothing: what was fetched
and not begun is given back at once.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tidemill.client.answers import Message
from tidemill.client.client import Client
from tidemill.client.endpoint import DEFAULT_ENDPOINT
from tidemill.core.durations import Span, as_duration_ms
from tidemill.core.errors import TidemillError, TopicExists

Handler = Callable[[Message], Any]
H = TypeVar("H", bound=Handler)

_log = logging.getLogger("tidemill.worker")
_POLL_MS = 2_000
_FETCH_MAX = 32
_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Subscription:
    """One function and what it is called with."""

    topic: str
    handler: Handler
    tags: tuple[str, ...] | None
    invisible_ms: int
    first_retry_ms: int
    longest_retry_ms: int

    def retry_ms(self, attempt: int) -> int:
        """How long a message waits after its `attempt`-th failure."""
        return min(self.longest_retry_ms, self.first_retry_ms << min(attempt - 1, 40))


class Worker:
    """Calls functions with messages, from threads. Make it, register functions, `run` it."""

    def __init__(
        self,
        endpoint: str = DEFAULT_ENDPOINT,
        *,
        group: str,
        concurrency: int = 8,
        token: str = "",
        ca: str | Path = "",
        insecure: bool = False,
        on_error: Callable[[Message, BaseException], None] | None = None,
    ) -> None:
        self.group = group
        self.client = Client(endpoint, token=token, ca=ca, insecure=insecure)
        self._concurrency = concurrency
        self._on_error = on_error
        self._subscriptions: list[Subscription] = []
        self._stopping = threading.Event()  # fetch no more
        self._finished = threading.Event()  # nothing is in hand any more
        self._free = threading.Semaphore(concurrency)
        self._lock = threading.Lock()  # protects _held, and is kept while a lease is renewed
        self._held: dict[str, tuple[Message, Subscription]] = {}  # by receipt: fetched and not settled
        self._pool: ThreadPoolExecutor | None = None
        self._fetchers: list[threading.Thread] = []
        self._renewer: threading.Thread | None = None

    def on(
        self,
        topic: str,
        *,
        tags: Sequence[str] | None = None,
        invisible: Span = "60s",
        first_retry: Span = "1s",
        longest_retry: Span = "10m",
    ) -> Callable[[H], H]:
        """Call the decorated function (plain or async) with the messages of a topic."""

        def register(handler: H) -> H:
            self._subscriptions.append(
                Subscription(
                    topic,
                    handler,
                    None if tags is None else tuple(tags),
                    as_duration_ms(invisible),
                    as_duration_ms(first_retry),
                    as_duration_ms(longest_retry),
                )
            )
            return handler

        return register

    # -- lifecycle --------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until stopped by `stop`, SIGTERM or Ctrl-C."""
        is_main = threading.current_thread() is threading.main_thread()
        before = {s: signal.signal(s, self._on_signal) for s in (signal.SIGTERM, signal.SIGINT) if is_main}
        try:
            self.start()
            while not self._stopping.wait(_PAUSE_S):
                pass
            self.stop()
        finally:
            for number, action in before.items():
                signal.signal(number, action)

    def _on_signal(self, number: int, frame: object) -> None:
        self._stopping.set()

    def start(self) -> None:
        """Begin to work, in threads."""
        known = {topic.name for topic in self.client.topics()}
        for subscription in self._subscriptions:
            if subscription.topic not in known:
                self._make_topic(subscription.topic)
        self._pool = ThreadPoolExecutor(self._concurrency, "tidemill-worker")
        self._fetchers = [
            threading.Thread(target=self._fetch, args=(subscription,), name=f"fetch {subscription.topic}")
            for subscription in self._subscriptions
        ]
        self._renewer = threading.Thread(target=self._renew, name="renew leases", daemon=True)
        for thread in (*self._fetchers, self._renewer):
            thread.start()

    def _make_topic(self, name: str) -> None:
        try:
            self.client.create_topic(name)
        except TopicExists:
            return  # somebody else was faster

    def stop(self) -> None:
        """Fetch no more, finish what is in hand, then return."""
        self._stopping.set()
        for thread in self._fetchers:
            thread.join()
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        self._finished.set()
        if self._renewer is not None:
            self._renewer.join()
        self.client.close()

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- fetching ---------------------------------------------------------------------------------

    def _fetch(self, subscription: Subscription) -> None:
        while not self._stopping.is_set():
            if not self._free.acquire(timeout=_PAUSE_S):
                continue
            if self._stopping.is_set():
                return
            room = 1
            while room < _FETCH_MAX and self._free.acquire(blocking=False):
                room += 1
            messages = self._fetched(subscription, room)
            for _ in range(room - len(messages)):
                self._free.release()
            for message in messages:
                self._begin(subscription, message)

    def _fetched(self, subscription: Subscription, count: int) -> list[Message]:
        try:
            return self.client.receive_batch(
                subscription.topic,
                self.group,
                count=count,
                wait=_POLL_MS,
                invisible=subscription.invisible_ms,
                tags=subscription.tags,
            )
        except TidemillError as error:
            _log.warning("cannot fetch from %s: %s", subscription.topic, error)
            self._stopping.wait(_PAUSE_S)
            return []

    def _begin(self, subscription: Subscription, message: Message) -> None:
        assert self._pool is not None
        with self._lock:
            self._held[message.receipt] = (message, subscription)
        job = self._pool.submit(self._handle, subscription, message)
        job.add_done_callback(lambda done: self._ended(message, done))

    # -- handling ---------------------------------------------------------------------------------

    def _handle(self, subscription: Subscription, message: Message) -> None:
        """Call the function; its message is settled by how that ends, and the error goes on."""
        if self._stopping.is_set():
            self._let_go(message)
            self.client.retry_in(0, message)
            return
        is_done = False
        try:
            result = subscription.handler(message)
            if inspect.isawaitable(result):
                asyncio.run(_awaited(result))
            is_done = True
        finally:
            self._let_go(message)
            if is_done:
                self.client.ack(message)
            else:
                self.client.retry_in(subscription.retry_ms(message.attempt), message)

    def _let_go(self, message: Message) -> None:
        """From here on nobody renews its lease, so that what is said of it next is the last word."""
        with self._lock:
            self._held.pop(message.receipt, None)

    def _ended(self, message: Message, job: Future[None]) -> None:
        self._free.release()
        error = job.exception()
        if error is not None:
            _log.error("message %s of %s failed: %r", message.id, message.topic, error, exc_info=error)
            if self._on_error is not None:
                self._on_error(message, error)

    def _renew(self) -> None:
        """Renew the leases of what is in hand, well before they end."""
        if not self._subscriptions:
            return
        every_s = min(subscription.invisible_ms for subscription in self._subscriptions) / 3000
        while not self._finished.wait(every_s):
            for message, subscription in list(self._held.values()):
                with self._lock:
                    if message.receipt in self._held:
                        self._renew_one(message, subscription)

    def _renew_one(self, message: Message, subscription: Subscription) -> None:
        try:
            self.client.retry_in(subscription.invisible_ms, message)
        except TidemillError as error:
            _log.warning("cannot renew the lease of %s: %s", message.id, error)


async def _awaited(result: Any) -> Any:
    return await result
