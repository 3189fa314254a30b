"""kill -9 of the broker under the recipe for order time-outs: no order is refunded that was never closed.

The functions are those of the page `docs/how-to/order-timeout.md`. Threads place orders and pay them around
the end of their time while the broker is killed again and again, so that answers to cancels are lost.
"""

from __future__ import annotations

import random
import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tidemill
from acceptance.serving import Served, wait_until
from tidemill.core.errors import TidemillError

pytestmark = pytest.mark.slow

_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "order-timeout.md"
_TOPIC = "order-timeouts"
_FLAGS = ("--pipeline", "embedded", "--lead", "1s", "--tick", "100ms")
_KILLS = 5  # the pause before a restart doubles
_PAID_PER_LIFE = 60
_THREADS = 16
_TIME_TO_PAY_MS = 800
_pause = threading.Event()  # never set


class _Recipe:
    """The page's functions, for orders that have less than a second to be paid."""

    def __init__(self, endpoint: str) -> None:
        (block, *_) = re.findall(r"```python\n(.*?)```", _PAGE.read_text(), re.DOTALL)
        source, _ = block.split("handle = order_made(17)")
        for given, taken in {
            'Client("127.0.0.1:8081")': f'Client("{endpoint}", retry_for="120s")',  # the machine may be slow
            'delay="30m"': f"delay={_TIME_TO_PAY_MS / 1_000}",
        }.items():
            assert given in source
            source = source.replace(given, taken)
        names: dict[str, Any] = {}
        exec(source, names)
        self.order_made, self.order_paid = names["order_made"], names["order_paid"]
        self.client: tidemill.Client = names["client"]
        self.answers: Counter[str] = Counter()
        cancel = self.client.cancel

        def counted(handle: str, **options: Any) -> tidemill.CancelAnswer:
            answer = cancel(handle, **options)
            self.answers[answer] += 1
            return answer

        self.client.cancel = counted  # type: ignore[method-assign, assignment]


class _Shop:
    """Customers who pay at the last moment, and a worker that closes orders."""

    def __init__(self, endpoint: str) -> None:
        self.recipe = _Recipe(endpoint)
        self.paid: set[int] = set()
        self.refunded: set[int] = set()
        self.closed: set[int] = set()
        self.faults: list[str] = []
        self.is_over = threading.Event()
        self._numbers = iter(range(1 << 40))
        self._worker = tidemill.Worker(endpoint, group="closers")
        self._worker.on(_TOPIC, lease="3s")(self._close)
        self._customers = [threading.Thread(target=self._buy, args=(seed,)) for seed in range(_THREADS)]

    def __enter__(self) -> _Shop:
        self._worker.start()
        for customer in self._customers:
            customer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close_shop()
        self._worker.stop()
        self.recipe.client.close()

    def close_shop(self) -> None:
        self.is_over.set()
        for customer in self._customers:
            customer.join()

    @property
    def answered(self) -> int:
        return len(self.paid) + len(self.refunded)

    def _close(self, message: tidemill.Message) -> None:
        self.closed.add(int(message.key.removeprefix("order-")))

    def _buy(self, seed: int) -> None:
        dice = random.Random(seed)
        try:
            while not self.is_over.is_set():
                number = next(self._numbers)
                handle = self.recipe.order_made(number)
                _pause.wait(dice.choice((0.0, 0.0, 0.01, 0.1, _TIME_TO_PAY_MS / 1000)))
                (self.paid if self.recipe.order_paid(handle) else self.refunded).add(number)
        except BaseException as fault:
            self.faults.append(repr(fault))


def _kill(served: Served) -> None:
    (old,) = served.broker_pids()
    served.kill_broker()
    wait_until(lambda: old not in served.broker_pids() and served.is_ready(), "a new broker")


def _nothing_pending(served: Served) -> bool:
    try:
        with tidemill.Client(served.endpoint) as client:
            return client.status().pending == 0
    except TidemillError:
        return False


def test_no_order_is_refunded_that_was_never_closed(tmp_path: Path) -> None:
    served = Served(tmp_path / "data", *_FLAGS)
    served.prepare(_TOPIC)
    try:
        with _Shop(served.start().endpoint) as shop:
            for _ in range(_KILLS):
                enough = shop.answered + _PAID_PER_LIFE
                wait_until(lambda: bool(shop.faults) or shop.answered >= enough, "payments")  # noqa: B023
                _kill(served)
            shop.close_shop()
            assert not shop.faults
            wait_until(lambda: _nothing_pending(served), "the last releases")
            wait_until(lambda: shop.refunded <= shop.closed, "the refunded orders to be closed", 20)
            assert not shop.paid & shop.closed
        assert served.stop() == 0
    finally:
        served.stop()
    # Each order is paid by one call, so no other call can have cancelled it before.
    assert set(shop.recipe.answers) == {"cancelled", "released"}
