"""kill -9 of each process of a `serve` while real clients send, cancel and consume: every answer was true.

There are two: the supervisor, and the broker process, which is Envoy with the broker inside. The official
Python client and ours each send and cancel from threads, ours also tables over Flight, and each consumes all
of it in a group of its own. The broker is killed again and again under them; afterwards the books are
compared with the directory.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable

import pyarrow as pa
import pytest
from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
)
from rocketmq.v5.exception import BadRequestException, NotFoundException

import tidemill
from acceptance.accounting import Book, Entry, Told, settle
from acceptance.official_python import start
from acceptance.serving import Served, wait_until
from tidemill.core.errors import TidemillError
from tidemill.core.processes import is_alive

pytestmark = pytest.mark.slow

_TOPIC = "orders"
_KILLS = 3
_PER_LIFE = 250
# A lead of a second, so that delays lie on both sides of it: near ones and ones that go through the wheel.
_FLAGS = ("--pipeline", "embedded", "--lead", "1s", "--tick", "100ms")
_THREADS = 3
_TABLE_ROWS = 20
_TOLD = {
    # Also where the answer was lost and it was asked for again: never `already-cancelled`.
    tidemill.CancelAnswer.CANCELLED: Told.CANCELLED,
    tidemill.CancelAnswer.RELEASED: Told.RELEASED,
}
_pause = threading.Event()  # never set


class _Load:
    """Threads that send and cancel until they are stopped, and two consumers."""

    def __init__(self, served: Served) -> None:
        self.book = Book()
        self.is_over = threading.Event()
        self.begun: set[str] = set()  # bodies, from the moment before they are sent
        self.seen: dict[str, set[str]] = {"official": set(), "ours": set()}
        self._served = served
        self._client = tidemill.Client(served.endpoint, retry_for="60s")
        configuration = ClientConfiguration(served.endpoint, Credentials())
        self._producer = Producer(configuration, (_TOPIC,))
        self._consumer = PushConsumer(
            configuration, "official", _Listener(self.seen["official"]), {_TOPIC: FilterExpression()}
        )
        self._worker = tidemill.Worker(served.endpoint, group="ours")
        # What is in its hands when the broker dies comes again when the lease ends.
        self._worker.on(_TOPIC, lease="3s")(lambda message: self.seen["ours"].add(message.text))
        ways = [(f"ours-{n}", self._send_ours) for n in range(_THREADS)]
        ways += [(f"official-{n}", self._send_official) for n in range(_THREADS)]
        self._senders = [threading.Thread(target=self._go_on, args=way) for way in ways]
        self._senders.append(threading.Thread(target=self._go_on_in_tables, args=("flight",)))

    def __enter__(self) -> _Load:
        start(self._producer)
        start(self._consumer)
        self._worker.start()
        for sender in self._senders:
            sender.start()
        return self

    def wait_for_sends(self, count: int) -> None:
        """Return when so many more are acknowledged."""
        enough = self.book.acknowledged() + count
        wait_until(
            lambda: bool(self.book.faults) or self.book.acknowledged() >= enough, f"{count} more sends"
        )

    def stop_sending(self) -> None:
        self.is_over.set()
        for sender in self._senders:
            sender.join()

    def __exit__(self, *_: object) -> None:
        self.stop_sending()
        self._worker.stop()
        self._consumer.shutdown()
        self._producer.shutdown()
        self._client.close()

    def _go_on(self, name: str, send: Callable[[str, random.Random], Entry]) -> None:
        dice = random.Random(name)
        try:
            for number in itertools.count():
                if self.is_over.is_set():
                    return
                body = f"{name}-{number}"
                self.begun.add(body)
                self.book.write(body, send(body, dice))
        except BaseException as fault:
            self.book.faults.append(f"{name}: {fault!r}")

    def _go_on_in_tables(self, name: str) -> None:
        dice = random.Random(name)
        try:
            for number in itertools.count():
                if self.is_over.is_set():
                    return
                bodies = [f"{name}-{number}-{row}" for row in range(_TABLE_ROWS)]
                self.begun.update(bodies)
                for body, entry in zip(bodies, self._send_table(bodies, dice), strict=True):
                    self.book.write(body, entry)
                _pause.wait(0.05)
        except BaseException as fault:
            self.book.faults.append(f"{name}: {fault!r}")

    def _send_table(self, bodies: list[str], dice: random.Random) -> list[Entry]:
        delays = [dice.randrange(0, 3_000) for _ in bodies]
        receipts = self._client.schedule(pa.table({"body": bodies, "delay_ms": delays}), topic=_TOPIC)
        assert not receipts.errors
        _pause.wait(dice.random() * 0.5)
        entries = [Entry(is_acknowledged=True)] * len(bodies)
        told = self._client.cancel_many([receipt.handle for receipt in receipts[::2]])
        entries[::2] = [Entry(is_acknowledged=True, cancel=_TOLD[answer]) for answer in told]
        return entries

    def _send_ours(self, body: str, dice: random.Random) -> Entry:
        receipt = self._client.send(_TOPIC, body, delay=dice.randrange(0, 3_000) / 1_000)
        assert receipt.handle is not None
        if dice.random() < 0.5:
            return Entry(is_acknowledged=True)
        _pause.wait(dice.random() * 0.1)
        return Entry(is_acknowledged=True, cancel=_TOLD[self._client.cancel(receipt.handle)])

    def _send_official(self, body: str, dice: random.Random) -> Entry:
        message = Message()
        message.topic, message.body = _TOPIC, body.encode()
        message.add_property("__delay_ms", str(dice.randrange(0, 3_000)))
        try:
            receipt = self._producer.send(message)
        except Exception:  # it tried three times and gave up: the message may be stored, or not
            _pause.wait(0.1)
            return Entry(is_acknowledged=False)
        if dice.random() < 0.5:
            return Entry(is_acknowledged=True)
        _pause.wait(dice.random() * 0.1)
        return Entry(is_acknowledged=True, cancel=self._recall(receipt.recall_handle))

    def _recall(self, handle: str) -> Told:
        try:
            self._producer.recall_message(_TOPIC, handle)
        except BadRequestException as refusal:
            if "already released" in str(refusal):
                return Told.RELEASED
            raise
        except NotFoundException:  # a send that was answered is unknown
            raise
        except Exception:  # it gave up on a broker that was away
            return Told.NO_ANSWER
        return Told.CANCELLED


class _Listener(MessageListener):
    def __init__(self, seen: set[str]) -> None:
        self._seen = seen

    def consume(self, message: Message) -> ConsumeResult:
        self._seen.add(message.body.decode())
        return ConsumeResult.SUCCESS


def _kill_broker(served: Served) -> None:
    (old,) = served.broker_pids()
    served.kill_broker()
    wait_until(lambda: old not in served.broker_pids() and served.is_ready(), "a new broker")


def _kill_supervisor(served: Served) -> None:
    (broker,) = served.broker_pids()
    served.kill_supervisor()
    wait_until(lambda: not is_alive(broker), "the broker to stop in order")
    served.start()


def _nothing_pending(served: Served) -> bool:
    try:
        with tidemill.Client(served.endpoint) as client:
            return client.status().pending == 0
    except TidemillError:
        return False


@pytest.mark.parametrize("kill", [_kill_broker, _kill_supervisor])
def test_every_answer_was_true_whatever_was_killed(tmp_path, kill):
    served = Served(tmp_path / "data", *_FLAGS)
    served.prepare(_TOPIC)
    try:
        with _Load(served.start()) as load:
            for _ in range(_KILLS):
                load.wait_for_sends(_PER_LIFE)
                kill(served)
            before = load.begun.copy()
            load.wait_for_sends(_PER_LIFE)  # the clients go on by themselves
            load.stop_sending()
            wait_until(lambda: _nothing_pending(served), "the last releases")
            everything = load.book.must_be_there()
            wait_until(lambda: everything <= load.seen["ours"], "our worker to have seen everything")
            # A push consumer's leases are of a minute, too long to wait for here.
            wait_until(lambda: everything - before <= load.seen["official"], "the push consumer to go on")
        assert served.stop() == 0
    finally:
        served.stop()
    found = settle(load.book, served.directory, _TOPIC)
    cancels = [entry.cancel for entry in load.book.entries.values()]
    # The load has to have reached all there is to be wrong about.
    assert {Told.CANCELLED, Told.RELEASED, Told.NOT_ASKED} <= set(cancels)
    flown = {entry.cancel for body, entry in load.book.entries.items() if body.startswith("flight-")}
    assert {Told.CANCELLED, Told.RELEASED, Told.NOT_ASKED} <= flown
    assert len(found) > _PER_LIFE
