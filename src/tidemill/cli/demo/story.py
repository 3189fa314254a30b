"""The story: who orders when, how long they have to pay, and what each of them does.

Owns the script of the demo as plain data. A shop closes an order that is not paid in time; thirty minutes in
the seeds, seconds here. Nothing is random, so every run is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

ORDER_COUNT = 40
LEAD_MS = 6_000  # the timer works this far ahead; an order with less time does not go through the wheel
TICK_MS = 100
SPARK_STOP_AT_MS = 11_500  # Spark is killed here: the broker must run the timer itself
STOP_AT_MS = 16_000  # the broker is killed here
STOPPED_FOR_MS = 600  # it is down for at least this long: the supervisor pauses, then starts another

_PLACED_EVERY_MS = 90
_SHORTEST_MS = 7_000
_LONGEST_MS = 20_000
_STRIDE_MS = 3_231
_NEAR_TIMEOUT_MS = 2_500


class Fate(Enum):
    """What the customer does."""

    UNPAID = "never pays"
    PAID = "pays in time"
    PAID_TWICE = "pays in time, and once more"
    EXTENDED = "asks for more time, then never pays"
    TOO_LATE = "pays after the order was closed"


class Act(Enum):
    PLACE = "place"
    PAY = "pay"
    EXTEND = "extend"
    KILL_SPARK = "kill spark"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Order:
    number: int
    placed_after_ms: int
    timeout_ms: int
    fate: Fate

    @property
    def key(self) -> str:
        return f"order-{self.number:02d}"


@dataclass(frozen=True, slots=True)
class Scene:
    """One act of the script, so many milliseconds after the beginning."""

    after_ms: int
    act: Act
    order: Order | None = None


EXTENDED_BY_MS = 2_500
_FATES = {6: Fate.EXTENDED, 16: Fate.EXTENDED, 26: Fate.EXTENDED, 9: Fate.PAID_TWICE, 11: Fate.TOO_LATE}


def orders() -> list[Order]:
    """All orders, in the order they are placed."""
    return [_order(number) for number in range(1, ORDER_COUNT + 1)]


def _order(number: int) -> Order:
    timeout_ms = _SHORTEST_MS + number * _STRIDE_MS % (_LONGEST_MS - _SHORTEST_MS)
    if number % 7 == 0:
        timeout_ms = _NEAR_TIMEOUT_MS
    fate = _FATES.get(number, Fate.PAID if number % 5 == 2 else Fate.UNPAID)
    return Order(number, (number - 1) * _PLACED_EVERY_MS, timeout_ms, fate)


def script(*, with_spark: bool) -> list[Scene]:
    """Everything that happens, in time order."""
    scenes = [Scene(STOP_AT_MS, Act.KILL)]
    if with_spark:
        scenes.append(Scene(SPARK_STOP_AT_MS, Act.KILL_SPARK))
    for order in orders():
        scenes.append(Scene(order.placed_after_ms, Act.PLACE, order))
        halfway_ms = order.placed_after_ms + order.timeout_ms // 2
        match order.fate:
            case Fate.PAID:
                scenes.append(Scene(halfway_ms, Act.PAY, order))
            case Fate.PAID_TWICE:
                scenes += [Scene(halfway_ms, Act.PAY, order), Scene(halfway_ms + 800, Act.PAY, order)]
            case Fate.EXTENDED:
                scenes.append(Scene(halfway_ms, Act.EXTEND, order))
            case Fate.TOO_LATE:
                after_ms = order.placed_after_ms + order.timeout_ms + 1_000
                scenes.append(Scene(after_ms, Act.PAY, order))
            case Fate.UNPAID:
                pass
    return sorted(scenes, key=lambda scene: scene.after_ms)
