"""The stage: plays the story against a served broker and records what happened to every order.

Owns the `tidemill serve` process (whose Spark and then whose broker it kills in the middle), its clients, the
thread that closes orders as they come out of the topic, and one record per order. It shows nothing: the
screen reads the records.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.cli.child_broker import ChildBroker
from tidemill.cli.demo.story import EXTENDED_BY_MS, LEAD_MS, TICK_MS, Act, Order, Scene, orders
from tidemill.client.change_verbs import HandleLike
from tidemill.client.client import Client
from tidemill.core.answers import Message
from tidemill.core.clock import SystemClock
from tidemill.core.errors import TidemillError
from tidemill.core.model import CancelAnswer, Via

_DRIVER = "tidemill.pipeline.driver"
TOPIC = "order-timeouts"
GROUP = "order-closer"
_POLL_MS = 200
_INVISIBLE_MS = 3_000  # what the kill loses on its way to the consumer is delivered again after this
_PAUSE_S = 0.02
_LOOK_S = 0.05
_SPARK_PATIENCE_MS = 180_000  # on a small, busy machine it takes ten times as long
_TAKEOVER_PATIENCE_MS = 5_000
_BACK_S = 10.0  # how long the consumer may take to find the new broker


@dataclass(frozen=True, slots=True)
class Closing:
    """One time that an order came out of the topic."""

    due_ms: int
    released_ms: int
    seen_ms: int
    via: Via
    attempt: int

    @property
    def late_ms(self) -> int:
        return self.seen_ms - self.due_ms


@dataclass(frozen=True, slots=True)
class Payment:
    """One payment: what the broker answered, and when."""

    answer: CancelAnswer
    answered_ms: int


@dataclass(slots=True)
class Record:
    """What happened to one order so far."""

    order: Order
    due_ms: int | None = None  # None: not placed yet
    handle: HandleLike | None = None
    payments: list[Payment] = field(default_factory=list)
    is_extended: bool = False
    was_extended_too_late: bool = False
    closings: list[Closing] = field(default_factory=list)

    @property
    def is_cancelled(self) -> bool:
        return any(payment.answer is CancelAnswer.CANCELLED for payment in self.payments)

    @property
    def is_waiting(self) -> bool:
        return self.due_ms is not None and not self.is_cancelled and not self.closings


def broker_of(directory: Path, pipeline: str) -> ChildBroker:
    """A broker on this directory that answers."""
    flags = ("--flight-port", "-1", "--lead", f"{LEAD_MS}ms", "--tick", f"{TICK_MS}ms")
    broker = ChildBroker(directory, "--pipeline", pipeline, *flags)
    try:
        broker.start()
    except BaseException:
        broker.stop()
        raise
    return broker


class Stage:
    """A running story. `play` is for one thread; the screen may read the records at any time."""

    def __init__(self, directory: Path, clock: SystemClock, pipeline: str) -> None:
        self.clock = clock
        self.records = {order.number: Record(order) for order in orders()}
        self.events: deque[tuple[int, str]] = deque()  # ms since the beginning, what happened
        self.is_up = True  # False from the kill until the new broker answers
        self.pending_at_stop = self.pending_at_start = 0
        self.stopped_from_ms = self.stopped_until_ms = 0
        self.is_on_spark = pipeline == "spark"
        self.spark_start_ms: int | None = None  # from the broker's start until Spark ran the timer
        self.takeover_ms: int | None = None  # from Spark's end until the broker ran it
        self.was_spark_too_slow = False  # the broker had taken over before Spark was killed
        self.machine_late_ms = 0  # how long this machine kept a thread waiting that was ready to run
        self._takeovers_at_begin = 0
        self._lock = threading.Lock()  # protects records and events
        self._leaves = threading.Event()
        self._is_heard = threading.Event()  # the consumer's last call was answered
        self.broker = broker_of(directory, pipeline)
        self.endpoint = self.broker.endpoint
        self._client = Client(self.endpoint)
        self._client.topics.create(TOPIC)
        self.begun_ms = clock.now_ms()
        self._consumer = threading.Thread(target=self._close_orders, daemon=True)

    def begin(self) -> None:
        """Wait until Spark runs the timer, if it should; then the story's time begins."""
        if self.is_on_spark:
            self.spark_start_ms = self._wait_for_runner("spark", _SPARK_PATIENCE_MS)
            self._takeovers_at_begin = self._takeovers()
        self.begun_ms = self.clock.now_ms()
        self._consumer.start()

    def _wait_for_runner(self, runner: str, patience_ms: int) -> int | None:
        """Wait until this one runs the timer; returns the milliseconds that took, None if it does not."""
        from_ms = self.clock.now_ms()
        while self._client.status().runner != runner:
            if self.clock.now_ms() > from_ms + patience_ms:
                return None
            self._leaves.wait(_LOOK_S)
        return self.clock.now_ms() - from_ms

    def _takeovers(self) -> int:
        pipeline = self._client.status().fields["pipeline"]
        assert isinstance(pipeline, dict)
        return int(pipeline["takeovers"])

    # -- the consumer -----------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the consumer and the broker."""
        self._leaves.set()
        if self._consumer.is_alive():
            self._consumer.join()
        self._client.close()
        self.broker.stop()

    def _close_orders(self) -> None:
        with Client(self.endpoint) as client:
            while not self._leaves.is_set():
                try:
                    self._close_some(client)
                except TidemillError:  # the broker went away under a call; what it held comes again
                    self._leaves.wait(_PAUSE_S)

    def _close_some(self, client: Client) -> None:
        messages = client.receive_batch(TOPIC, GROUP, wait=_POLL_MS / 1_000, lease=_INVISIBLE_MS / 1_000)
        self._is_heard.set()
        for message in messages:
            self._note_closing(message)
            client.ack(message)

    def _note_closing(self, message: Message) -> None:
        seen_ms = self.clock.now_ms()
        assert message.deliver_at_ms is not None
        record = self.records[int(message.key.removeprefix("order-"))]
        via = Via[message.via.upper()]
        closing = Closing(message.deliver_at_ms, message.released_at_ms, seen_ms, via, message.attempt)
        with self._lock:
            # Delivered again because the kill came before our acknowledgement: it is closed already.
            if message.attempt > 1 and record.closings:
                return
            record.closings.append(closing)
        self._tell(f"order {record.order.number} was not paid: closed, {closing.late_ms} ms after its time")

    # -- the acts ---------------------------------------------------------------------------------

    def play(self, scene: Scene) -> None:
        if scene.act is Act.KILL:
            self._kill()
            return
        if scene.act is Act.KILL_SPARK:
            self._kill_spark()
            return
        assert scene.order is not None
        record = self.records[scene.order.number]
        match scene.act:
            case Act.PLACE:
                self._place(record)
            case Act.PAY:
                self._pay(record)
            case Act.EXTEND:
                self._extend(record)

    def _place(self, record: Record) -> None:
        order = record.order
        body = f"close {order.key} unless it was paid"
        result = self._client.send(TOPIC, body, delay=order.timeout_ms / 1_000, key=order.key)
        with self._lock:
            record.handle, record.due_ms = result.handle, result.deliver_at_ms
        self._tell(f"order {order.number} placed, {order.timeout_ms / 1000:.1f} s to pay")

    def _pay(self, record: Record) -> None:
        assert record.handle is not None
        answer = self._client.cancel(record.handle)
        with self._lock:
            record.payments.append(Payment(answer, self.clock.now_ms()))
        meaning = {
            CancelAnswer.CANCELLED: "its time-out is cancelled",
            CancelAnswer.RELEASED: "too late, it was closed already",
            CancelAnswer.ALREADY_CANCELLED: "it was paid before",
            CancelAnswer.UNKNOWN: "unknown",
        }
        self._tell(f"order {record.order.number} paid: {answer} ({meaning[answer]})")

    def _extend(self, record: Record) -> None:
        assert record.handle is not None
        moved = self._client.reschedule(record.handle, by=EXTENDED_BY_MS / 1_000)
        if moved.handle is not None:
            with self._lock:
                record.handle, record.due_ms = moved.handle, moved.deliver_at_ms
                record.is_extended = True
            self._tell(f"order {record.order.number} asked for {EXTENDED_BY_MS / 1000:.1f} s more: granted")
        else:
            record.was_extended_too_late = self.clock.now_ms() >= (record.due_ms or 0)
            self._tell(f"order {record.order.number} asked for more time too late: {moved.answer}")

    def _kill_spark(self) -> None:
        self.was_spark_too_slow = self._takeovers() > self._takeovers_at_begin
        pid = self.broker.kill_below(_DRIVER)
        self._tell(f"Spark (process {pid}) is killed")
        self.takeover_ms = self._wait_for_runner("embedded", _TAKEOVER_PATIENCE_MS)
        if self.takeover_ms is not None:
            self._tell(
                f"the broker took over after {self.takeover_ms / 1000:.1f} s and runs the timer itself"
            )

    def _kill(self) -> None:
        before = self._client.status()
        self.stopped_from_ms = self.clock.now_ms()
        self.is_up = False
        pid = self.broker.kill_broker()
        self._is_heard.clear()
        self.pending_at_stop = before.pending
        self._tell(f"the broker (process {pid}) is killed with {before.pending} orders pending")
        after = self._client.status()  # waits until the supervisor has started another
        self._is_heard.wait(_BACK_S)
        self.stopped_until_ms = self.clock.now_ms()
        self.is_up = True
        # Nothing was sent or cancelled meanwhile: what was pending then is pending now, or was released.
        self.pending_at_start = after.pending + after.released - before.released
        stopped_s = (self.stopped_until_ms - self.stopped_from_ms) / 1000
        self._tell(f"the broker is back after {stopped_s:.1f} s; all {self.pending_at_start} are still there")

    # -- looking ----------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """True when every order is settled."""
        with self._lock:
            return all(r.is_cancelled or r.closings for r in self.records.values())

    def wait_until(self, after_ms: int) -> None:
        """Wait until this time after the beginning; notes how late the thread ran."""
        self.clock.wait(self._leaves, self.begun_ms + after_ms)
        self.machine_late_ms = max(self.machine_late_ms, self.since_begin_ms() - after_ms)

    def since_begin_ms(self) -> int:
        return self.clock.now_ms() - self.begun_ms

    def was_delayed_by_the_kill(self, closing: Closing) -> bool:
        """True if it fell due while the broker was down, or was lost by the kill and delivered again."""
        return self.stopped_from_ms <= closing.due_ms <= self.stopped_until_ms or closing.attempt > 1

    def _tell(self, text: str) -> None:
        with self._lock:
            self.events.append((self.since_begin_ms(), text))
