"""`Worker`: functions that are called with messages.

    app = tidemill.Worker(group="closers")

    @app.on("orders")
    def close_order(message: tidemill.Message) -> None:
        ...                       # returns: acknowledged; raises: delivered again later

    app.run()                     # until SIGTERM or Ctrl-C; messages in progress are finished first

Owns fetching, the threads that call the functions, and leases. A message whose function raises is retried by
the broker, by the table of its group, or as `first_retry` says; when the group's attempts are used up it goes
to the dead letters. While a function runs, the lease of its message is renewed, so a slow function does not
receive its own message again.

A topic with traffic is fetched from without waiting, for as many messages as there are free slots. A quiet
one is long-polled, for one message and without holding a slot: the slots are for messages in progress. So a
worker may hold one message more for each of its topics than it works on at once.

Signals interrupt the main thread at any point. So their handler only sets a flag and opens a lock, or, while
the broker is being contacted and no message is held, ends that by an exception.

Invariants: nothing is acknowledged before its function has returned; `stop` loses nothing: what was fetched
and not begun is returned at once, and does not count as an attempt. For a FIFO group, no two messages of a
message group are held together, so the next comes when the one before is settled, also where that one failed
first.
"""

from __future__ import annotations

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

from tidemill.client.client import Client
from tidemill.client.handler_loop import HandlerLoop
from tidemill.client.slots import Slots
from tidemill.client.transport.close_signal import release_once
from tidemill.client.transport.endpoint import DEFAULT_ENDPOINT
from tidemill.core.answers import Message
from tidemill.core.arguments import require_kind, require_whole
from tidemill.core.durations import Span, as_duration_ms
from tidemill.core.errors import ForbiddenError, RequestError, TidemillError, TopicExistsError

Handler = Callable[[Message], Any]
H = TypeVar("H", bound=Handler)

_log = logging.getLogger("tidemill.worker")
_POLL_MS = 2_000
_FETCH_MAX = 32
_PAUSE_S = 1.0
_CONCURRENCY_MAX = 10_000
_LONGEST_RETRY_MS = 600_000
_INVISIBLE_MS_MIN = 1_000  # renewed every third of it


class _StoppedEarly(BaseException):
    """A signal came while the broker was looked for."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """One function and the messages it is called with."""

    topic: str
    handler: Handler
    tags: tuple[str, ...] | None
    lease_ms: int
    first_retry_ms: int | None = None  # None: the broker decides, by the group's table
    longest_retry_ms: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.handler):
            raise RequestError(f"{self.handler!r} cannot be called; decorate a function that takes a message")
        if self.lease_ms < _INVISIBLE_MS_MIN:
            raise RequestError(f"lease={self.lease_ms}ms is too short to be renewed in time; use 1s or more")
        if min(self.first_retry_ms or 0, self.longest_retry_ms or 0) < 0:
            raise RequestError("first_retry and longest_retry cannot be negative")
        if self.first_retry_ms is None and self.longest_retry_ms is not None:
            raise RequestError(
                f"longest_retry={self.longest_retry_ms}ms bounds a pause that grows from first_retry; "
                "give first_retry too, or neither for the group's table"
            )

    def retry_s(self, attempt: int) -> float | None:
        """How long a message waits after its `attempt`-th failure; None: by its group's table."""
        if self.first_retry_ms is None:
            return None
        longest_ms = _LONGEST_RETRY_MS if self.longest_retry_ms is None else self.longest_retry_ms
        return min(longest_ms, self.first_retry_ms << min(attempt - 1, 40)) / 1_000


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
        retry_for: Span = "30s",
        on_error: Callable[[Message, BaseException], None] | None = None,
    ) -> None:
        require_kind("group", group, str, "a text")
        if not group:
            raise RequestError("a worker needs the name of its consumer group: Worker(..., group='closers')")
        require_whole("concurrency", concurrency, 1, _CONCURRENCY_MAX)
        self.group = group
        self.client = Client(endpoint, token=token, ca=ca, insecure=insecure, retry_for=retry_for)
        self._concurrency = concurrency
        self._on_error = on_error
        self._subscriptions: list[Subscription] = []
        self._is_opening = False  # no thread is started, so a signal may end `run` by an exception
        self._is_signalled = False
        self._woken = threading.Lock()  # at which `run` waits
        self._woken.acquire()
        self._ending = threading.Lock()  # serialises calls of `stop`
        self._own = threading.local()  # has `is_inside` in threads of this worker
        self._stopping = threading.Event()  # fetch no more
        self._finished = threading.Event()  # no message is held any more
        self._slots = Slots(concurrency)
        self._lock = threading.Lock()  # protects _held, and is kept while a lease is renewed
        self._held: dict[str, tuple[Message, Subscription]] = {}  # by ack token: fetched and not settled
        self._pool: ThreadPoolExecutor | None = None
        self._fetchers: list[threading.Thread] = []
        self._renewer: threading.Thread | None = None
        self._loop = HandlerLoop()

    def on(
        self,
        topic: str,
        *,
        tags: Sequence[str] | None = None,
        lease: Span = "60s",
        first_retry: Span | None = None,
        longest_retry: Span | None = None,
    ) -> Callable[[H], H]:
        """Call the decorated function (plain or async) with the messages of a topic.

        A message it raises on is delivered again after the pause of the group's table; with `first_retry`
        after that, doubled with every attempt up to `longest_retry` (10 minutes).
        """
        if not isinstance(topic, str):
            raise RequestError('name the topic: @app.on("orders")')
        if isinstance(tags, str):
            raise RequestError(f"tags must be a list of texts; write tags=[{tags!r}]")
        if self._pool is not None:
            raise RequestError("this worker has started; register all functions before")
        self._refuse_another_choice(topic, tags)

        def register(handler: H) -> H:
            self._subscriptions.append(
                Subscription(
                    topic,
                    handler,
                    None if tags is None else tuple(tags),
                    as_duration_ms(lease),
                    None if first_retry is None else as_duration_ms(first_retry),
                    None if longest_retry is None else as_duration_ms(longest_retry),
                )
            )
            return handler

        return register

    def _refuse_another_choice(self, topic: str, tags: Sequence[str] | None) -> None:
        """What one function does not want is passed over for the whole group, and would not reach another."""
        for other in self._subscriptions:
            if other.topic == topic and set(other.tags or ()) != set(tags or ()):
                raise RequestError(
                    f"a group makes one choice of tags in topic {topic!r}: let one function take them all "
                    "and look at message.tag, or take a worker with a group of its own for each choice"
                )

    # -- lifecycle --------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until stopped by `stop`, SIGTERM or Ctrl-C; a second signal ends the process at once.

        The second signal goes to the previous handler; Python's own Ctrl-C would wait for the functions.
        """
        is_main = threading.current_thread() is threading.main_thread()
        before: dict[signal.Signals, Any] = {}
        self._is_opening = True
        try:
            for number in (signal.SIGTERM, signal.SIGINT) if is_main else ():
                before[number] = signal.signal(number, self._on_signal)
            self._open()
            self._is_opening = False
            self._begin_threads()
            while not (self._is_signalled or self._stopping.is_set()):
                self._woken.acquire(timeout=_PAUSE_S)
            _restore({n: _ending_at_once(action) for n, action in before.items()})
            self.stop()
        except _StoppedEarly:
            self.client.close()
        except TidemillError:
            if not self._stopping.is_set():  # else `stop` took the broker away from under us
                raise
        finally:
            self._is_opening = False
            _restore(before)

    def _on_signal(self, number: int, frame: object) -> None:
        self._is_signalled = True
        if self._is_opening:
            raise _StoppedEarly
        release_once(self._woken)

    def start(self) -> None:
        """Begin to work, in threads. A worker is started once."""
        self._open()
        self._begin_threads()

    def _open(self) -> None:
        """Find the broker, and make the topics that it does not have."""
        if not self._subscriptions:
            raise RequestError(
                'this worker has nothing to do; register a function with @app.on("topic") first'
            )
        if self._pool is not None:
            raise RequestError("this worker was started before; make another one")
        known = {topic.name for topic in self.client.topics.list()}
        for subscription in self._subscriptions:
            if subscription.topic not in known:
                self._make_topic(subscription.topic)

    def _begin_threads(self) -> None:
        self._pool = ThreadPoolExecutor(self._concurrency, "tidemill-worker", self._is_one_of_us)
        self._loop.start()
        self._fetchers = [
            threading.Thread(target=self._fetch, args=(subscription,), name=f"fetch {subscription.topic}")
            for subscription in self._subscriptions
        ]
        self._renewer = threading.Thread(target=self._renew, name="renew leases", daemon=True)
        for thread in (*self._fetchers, self._renewer):
            thread.start()

    def _make_topic(self, name: str) -> None:
        try:
            self.client.topics.create(name)
        except TopicExistsError:
            return  # another worker created it first
        except ForbiddenError:
            return  # a user who may only receive sees no topics either: the fetch reports a missing one

    def stop(self) -> None:
        """Fetch no more, finish the messages in progress, then return.

        A function that calls it would wait for itself: there it returns at once, and the thread in `run`
        finishes.
        """
        self._stopping.set()
        release_once(self._woken)
        if self._loop.is_here or getattr(self._own, "is_inside", False):
            return
        with self._ending:
            for thread in self._fetchers:
                thread.join()
            if self._pool is not None:
                self._pool.shutdown(wait=True)
            self._finished.set()
            if self._renewer is not None:
                self._renewer.join()
                self._renewer = None
                self._loop.end()
            self.client.close()

    def _is_one_of_us(self) -> None:
        self._own.is_inside = True

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- fetching ---------------------------------------------------------------------------------

    def _fetch(self, subscription: Subscription) -> None:
        self._is_one_of_us()
        flows = False
        while not self._stopping.is_set():
            room = self._slots.reserve(_FETCH_MAX if flows else 1, _PAUSE_S)
            if not room:
                continue
            if flows:
                messages = self._fetched(subscription, room, 0)
                self._slots.release(room - len(messages))
            else:
                self._slots.release(room)
                messages = self._fetched(subscription, 1, _POLL_MS)
                self._slots.add(len(messages))
            flows = bool(messages)
            for message in messages:
                self._begin(subscription, message)

    def _fetched(self, subscription: Subscription, count: int, wait_ms: int) -> list[Message]:
        try:
            return self.client.receive_batch(
                subscription.topic,
                self.group,
                count=count,
                wait=wait_ms / 1_000,
                lease=subscription.lease_ms / 1_000,
                tags=subscription.tags,
                one_per_message_group=True,
            )
        except TidemillError as error:
            _log.warning("cannot fetch from %s: %s", subscription.topic, error)
            self._stopping.wait(_PAUSE_S)
            return []

    def _begin(self, subscription: Subscription, message: Message) -> None:
        assert self._pool is not None
        with self._lock:
            self._held[message.ack_token] = (message, subscription)
        job = self._pool.submit(self._handle, subscription, message)
        job.add_done_callback(lambda done: self._ended(message, done))

    # -- handling ---------------------------------------------------------------------------------

    def _handle(self, subscription: Subscription, message: Message) -> None:
        """Call the function; its message is settled by how that ends, and the error goes on."""
        if self._stopping.is_set():
            self._let_go(message)
            self.client.requeue(message)
            return
        is_done = False
        try:
            result = subscription.handler(message)
            if inspect.isawaitable(result):
                self._loop.wait_for(result)
            is_done = True
        finally:
            self._let_go(message)
            if is_done:
                self.client.ack(message)
            else:
                self.client.nack(message, delay=subscription.retry_s(message.attempt))

    def _let_go(self, message: Message) -> None:
        """Stop renewing its lease, so that the next request about it is final."""
        with self._lock:
            self._held.pop(message.ack_token, None)

    def _ended(self, message: Message, job: Future[None]) -> None:
        self._slots.release()
        error = job.exception()
        if error is not None:
            _log.error("message %s of %s failed: %r", message.id, message.topic, error, exc_info=error)
            if self._on_error is not None:
                self._on_error(message, error)

    def _renew(self) -> None:
        """Renew the leases of held messages, well before they end."""
        every_s = min(subscription.lease_ms for subscription in self._subscriptions) / 3000
        while not self._finished.wait(every_s):
            for subscription in self._subscriptions:
                with self._lock:
                    messages = [message for message, owner in self._held.values() if owner is subscription]
                    if messages:
                        self._renew_all(messages, subscription)

    def _renew_all(self, messages: Sequence[Message], subscription: Subscription) -> None:
        try:
            is_ours = self.client.extend(*messages, lease=subscription.lease_ms / 1_000)
        except TidemillError as error:
            _log.warning("cannot renew the leases of %d messages: %s", len(messages), error)
            return
        for message in [m for m, ours in zip(messages, is_ours, strict=True) if not ours]:
            del self._held[message.ack_token]
            _log.warning("the lease of %s has ended; it may be handled twice", message.id)


def _ending_at_once(action: Any) -> Any:
    """What a signal did before, or the end of the process where Python would wait for its threads first."""
    return signal.SIG_DFL if action is signal.default_int_handler else action


def _restore(before: dict[signal.Signals, Any]) -> None:
    """Restore the previous signal handlers."""
    for number, action in before.items():
        signal.signal(number, action)
