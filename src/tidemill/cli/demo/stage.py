"""The stage: plays the story on a real broker and writes down what happened to every order.

Owns the broker (which it stops and opens again in the middle), the thread that closes orders as they come
out of the topic, and one record per order. It shows nothing: the screen looks at the records.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.broker.broker import Broker
from tidemill.cli.demo.story import (
    EXTENDED_BY_MS,
    LEAD_MS,
    STOPPED_FOR_MS,
    TICK_MS,
    Act,
    Order,
    Scene,
    orders,
)
from tidemill.core.clock import SystemClock
from tidemill.core.config import BrokerSettings
from tidemill.core.model import CancelAnswer, Delivery, Draft, Handle, Via

TOPIC = "order-timeouts"
GROUP = "order-closer"
_POLL_MS = 200


@dataclass(frozen=True, slots=True)
class Closing:
    """One time that an order came out of the topic."""

    due_ms: int
    released_ms: int
    seen_ms: int
    via: Via

    @property
    def late_ms(self) -> int:
        return self.seen_ms - self.due_ms


@dataclass(slots=True)
class Record:
    """What happened to one order so far."""

    order: Order
    due_ms: int | None = None  # None: not placed yet
    handle: Handle | None = None
    answers: list[CancelAnswer] = field(default_factory=list)
    is_extended: bool = False
    closings: list[Closing] = field(default_factory=list)

    @property
    def is_cancelled(self) -> bool:
        return CancelAnswer.CANCELLED in self.answers

    @property
    def is_waiting(self) -> bool:
        return self.due_ms is not None and not self.is_cancelled and not self.closings


class Stage:
    """A running story. `play` is for one thread; the screen may read the records at any time."""

    def __init__(self, directory: Path, clock: SystemClock) -> None:
        self.clock = clock
        self.records = {order.number: Record(order) for order in orders()}
        self.events: deque[tuple[int, str]] = deque()  # ms since the beginning, what happened
        self.broker: Broker | None = None  # None while it is stopped
        self.pending_at_stop = self.pending_at_start = 0
        self.stopped_from_ms = self.stopped_until_ms = 0
        self._directory = directory
        self._lock = threading.Lock()  # protects records and events
        self._leaves = threading.Event()
        self._consumer: threading.Thread | None = None
        self.begun_ms = clock.now_ms()
        self._open()

    # -- the broker and its consumer --------------------------------------------------------------

    def _open(self) -> Broker:
        settings = BrokerSettings(lead_ms=LEAD_MS, tick_ms=TICK_MS)
        self.broker = broker = Broker(self._directory, settings)
        self._leaves.clear()
        self._consumer = threading.Thread(target=self._close_orders, args=(broker,), daemon=True)
        self._consumer.start()
        return broker

    def close(self) -> None:
        """Stop the consumer and the broker."""
        self._leaves.set()
        if self._consumer is not None:
            self._consumer.join()
        if self.broker is not None:
            self.broker.close()
            self.broker = None

    def _close_orders(self, broker: Broker) -> None:
        broker.topics.find_or_create(TOPIC)
        while not self._leaves.is_set():
            for delivery in broker.receive(TOPIC, GROUP, wait_ms=_POLL_MS):
                self._note_closing(delivery)
                broker.ack([delivery.receipt])

    def _note_closing(self, delivery: Delivery) -> None:
        seen_ms = self.clock.now_ms()
        number = int(delivery.message.keys[0].removeprefix("order-"))
        via = delivery.via
        closing = Closing(delivery.message.deliver_at_ms, delivery.released_at_ms, seen_ms, via)
        with self._lock:
            self.records[number].closings.append(closing)
        self._tell(f"order {number} was not paid: closed, {closing.late_ms} ms after its time")

    # -- the acts ---------------------------------------------------------------------------------

    def play(self, scene: Scene) -> None:
        if scene.act is Act.RESTART:
            self._restart()
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
        assert self.broker is not None
        order = record.order
        body = f"close {order.key} unless it was paid".encode()
        draft = Draft(TOPIC, body, delay_ms=order.timeout_ms, keys=(order.key,))
        (receipt,) = self.broker.send([draft])
        with self._lock:
            record.handle, record.due_ms = receipt.handle, receipt.deliver_at_ms
        self._tell(f"order {order.number} placed, {order.timeout_ms / 1000:.1f} s to pay")

    def _pay(self, record: Record) -> None:
        assert self.broker is not None and record.handle is not None
        (answer,) = self.broker.cancel([record.handle])
        with self._lock:
            record.answers.append(answer)
        meaning = {
            CancelAnswer.CANCELLED: "its time-out is cancelled",
            CancelAnswer.RELEASED: "too late, it was closed already",
            CancelAnswer.ALREADY_CANCELLED: "it was paid before",
            CancelAnswer.UNKNOWN: "nobody knows it",
        }
        self._tell(f"order {record.order.number} paid: {answer} ({meaning[answer]})")

    def _extend(self, record: Record) -> None:
        assert self.broker is not None and record.handle is not None
        (moved,) = self.broker.reschedule([record.handle], by_ms=EXTENDED_BY_MS)
        if moved.handle is not None:
            with self._lock:
                record.handle, record.due_ms = moved.handle, moved.deliver_at_ms
                record.is_extended = True
            self._tell(f"order {record.order.number} asked for {EXTENDED_BY_MS / 1000:.1f} s more: granted")

    def _restart(self) -> None:
        assert self.broker is not None
        self._leaves.set()
        if self._consumer is not None:
            self._consumer.join()
        broker, self.broker = self.broker, None
        self.stopped_from_ms = self.clock.now_ms()
        self.pending_at_stop = broker.close().pending
        self._tell(f"the broker is stopped with {self.pending_at_stop} orders pending")
        self.clock.wait(threading.Event(), self.stopped_from_ms + STOPPED_FOR_MS)
        reopened = self._open()
        self.stopped_until_ms = self.clock.now_ms()
        status = reopened.status()
        # Some may be released by now; whoever was neither released before nor cancelled must still count.
        cancelled = sum(record.is_cancelled for record in self.records.values())
        placed = sum(record.due_ms is not None for record in self.records.values())
        released_before = placed - cancelled - self.pending_at_stop
        self.pending_at_start = status.pending + status.released - released_before
        stopped_s = (self.stopped_until_ms - self.stopped_from_ms) / 1000
        self._tell(f"the broker is back after {stopped_s:.1f} s; all {self.pending_at_start} are still there")

    # -- looking ----------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """True when every order is settled."""
        with self._lock:
            return all(r.is_cancelled or r.closings for r in self.records.values())

    def since_begin_ms(self) -> int:
        return self.clock.now_ms() - self.begun_ms

    def was_stopped_when_due(self, closing: Closing) -> bool:
        return self.stopped_from_ms <= closing.due_ms <= self.stopped_until_ms

    def _tell(self, text: str) -> None:
        with self._lock:
            self.events.append((self.since_begin_ms(), text))
