"""The demo's script: the same every time, and it holds something of everything."""

from __future__ import annotations

from collections import Counter

from tidemill.cli.demo.story import (
    LEAD_MS,
    ORDER_COUNT,
    SPARK_STOP_AT_MS,
    STOP_AT_MS,
    STOPPED_FOR_MS,
    Act,
    Fate,
    orders,
    script,
)


def test_every_outcome_occurs() -> None:
    fates = Counter(order.fate for order in orders())
    assert set(fates) == set(Fate)
    assert sum(fates.values()) == ORDER_COUNT
    assert fates[Fate.UNPAID] > ORDER_COUNT // 2


def test_the_script_is_in_time_order_and_everybody_orders_once() -> None:
    scenes = script(with_spark=True)
    assert [scene.after_ms for scene in scenes] == sorted(scene.after_ms for scene in scenes)
    placed = [scene.order.number for scene in scenes if scene.act is Act.PLACE and scene.order]
    assert placed == list(range(1, ORDER_COUNT + 1))


def test_some_orders_fall_due_while_the_broker_is_stopped() -> None:
    due = [order.placed_after_ms + order.timeout_ms for order in orders() if order.fate is Fate.UNPAID]
    assert [at for at in due if STOP_AT_MS < at < STOP_AT_MS + STOPPED_FOR_MS]


def test_every_way_is_taken() -> None:
    unpaid = [order for order in orders() if order.fate is Fate.UNPAID]
    far = [order.placed_after_ms + order.timeout_ms for order in unpaid if order.timeout_ms > LEAD_MS]
    assert any(order.timeout_ms < LEAD_MS for order in unpaid)
    assert any(due < SPARK_STOP_AT_MS for due in far)  # handed over by Spark
    assert any(due > SPARK_STOP_AT_MS + LEAD_MS for due in far)  # never seen by it
    assert [s.act for s in script(with_spark=False) if s.order is None] == [Act.KILL]
