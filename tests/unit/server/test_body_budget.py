"""Bodies of requests: counted, bounded, and whole in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from helpers import simulated_loop
from tidemill.server.body_budget import BodyBudget, BodyRefused


def _caller(*pieces: bytes, is_whole: bool) -> Callable[[], Awaitable[dict[str, Any]]]:
    """Sends these pieces and then nothing, for ever."""
    events = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    events[-1]["more_body"] = not is_whole

    async def receive() -> dict[str, Any]:
        if events:
            return events.pop(0)
        return await asyncio.get_running_loop().create_future()

    return receive


async def _read(budget: BodyBudget, receive: Callable[[], Awaitable[dict[str, Any]]]) -> bytes:
    body, found = budget.watch(receive), b""
    try:
        while True:
            event = await body()
            found += event["body"]
            if not event["more_body"]:
                return found
    finally:
        body.close()


def test_a_body_that_has_begun_and_does_not_end_is_given_up() -> None:
    budget = BodyBudget(1000, 10_000, seconds_max=0)
    with pytest.raises(BodyRefused) as refused:
        asyncio.run(_read(budget, _caller(b"{", is_whole=False)))
    assert refused.value.status_code == 408
    assert budget.held == 0


def test_a_whole_body_is_taken_and_its_caller_may_stay_as_long_as_it_likes() -> None:
    budget = BodyBudget(1000, 10_000)
    assert asyncio.run(_read(budget, _caller(b"a", b"b", b"c", is_whole=True))) == b"abc"

    async def stays() -> None:
        body = BodyBudget(1000, 10_000, seconds_max=0).watch(_caller(b"all", is_whole=True))
        await body()
        waiting = asyncio.ensure_future(body())
        for _ in range(3):  # a deadline that has passed would be felt in the first turn of the loop
            await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()

    asyncio.run(stays())


def _slow_caller(size: int, every_s: float, count: int) -> Callable[[], Awaitable[dict[str, Any]]]:
    """Sends pieces of this size, with a pause before each."""
    left = count

    async def receive() -> dict[str, Any]:
        nonlocal left
        await asyncio.sleep(every_s)
        left -= 1
        return {"type": "http.request", "body": bytes(size), "more_body": left > 0}

    return receive


@pytest.mark.parametrize(
    ("size", "every_s", "count", "ends_s"),
    [
        (1, 1, 1_000, 11),  # the clock starts with the first byte
        (1_000, 1, 1_000, 11),
        (9_000, 9.5, 100, 19.5),  # the first window ends with 9 000 bytes, 500 too few
        (1, 0.001, 1_000_000, 10.001),
    ],
)
def test_a_body_that_comes_too_slowly_is_refused(
    size: int, every_s: float, count: int, ends_s: float
) -> None:
    budget = BodyBudget(1 << 30, 1 << 30)

    async def ended_s() -> float:
        with pytest.raises(
            BodyRefused, match="fewer than 10240 bytes of the body arrived in 10 seconds"
        ) as refused:
            await _read(budget, _slow_caller(size, every_s, count))
        assert refused.value.status_code == 408
        return asyncio.get_running_loop().time()

    assert simulated_loop.run(ended_s()) == pytest.approx(ends_s)
    assert budget.held == 0


@pytest.mark.parametrize(
    ("size", "every_s", "count"),
    [(1, 1, 10), (1_200, 1, 100), (100, 0.05, 1_000), (20_000, 9.9, 10), (9_000, 9, 2)],
)
def test_a_body_that_comes_fast_enough_is_taken(size: int, every_s: float, count: int) -> None:
    budget = BodyBudget(1 << 30, 1 << 30)
    assert len(simulated_loop.run(_read(budget, _slow_caller(size, every_s, count)))) == size * count


def test_a_body_is_whole_in_time_at_whatever_rate_it_comes() -> None:
    budget = BodyBudget(1 << 30, 1 << 30)
    with pytest.raises(BodyRefused, match="not complete within 120 seconds"):
        simulated_loop.run(_read(budget, _slow_caller(2_000, 1, 1_000)))


@pytest.mark.parametrize(("announced", "is_refused"), [(b"1000", False), (b"1001", True), (b"x", False)])
def test_what_is_announced_too_large_is_refused_before_it_comes(announced: bytes, is_refused: bool) -> None:
    scope = {"headers": [(b"content-type", b"application/json"), (b"content-length", announced)]}
    budget = BodyBudget(1000, 10_000)
    if is_refused:
        with pytest.raises(BodyRefused) as refused:
            budget.require_announced(scope)
        assert refused.value.status_code == 413
    else:
        budget.require_announced(scope)
