"""Calls that come together go together, and each gets its own answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidemill.server.batching import Batcher


def test_what_gathers_while_a_batch_runs_goes_with_the_next() -> None:
    batches: list[list[int]] = []
    has_begun, may_go = threading.Event(), threading.Event()

    def double(items: Sequence[int]) -> list[int]:
        batches.append(list(items))
        has_begun.set()
        may_go.wait(5)
        return [2 * item for item in items]

    async def main() -> list[int]:
        batcher: Batcher[int, int] = Batcher(double, executor, in_flight_max=1, batch_max=100)
        first = batcher.submit(1)
        await asyncio.to_thread(has_begun.wait, 5)
        others = [batcher.submit(number) for number in range(2, 12)]
        may_go.set()
        return [await waiter for waiter in (first, *others)]

    with ThreadPoolExecutor(2) as executor:
        assert asyncio.run(main()) == [2 * number for number in range(1, 12)]
    assert batches == [[1], list(range(2, 12))]


def test_a_batch_is_bounded_in_count_and_bytes() -> None:
    batches: list[list[bytes]] = []

    def keep(items: Sequence[bytes]) -> list[int]:
        batches.append(list(items))
        return [len(item) for item in items]

    async def main() -> list[int]:
        batcher: Batcher[bytes, int] = Batcher(
            keep, executor, in_flight_max=1, batch_max=3, size_max=10, size_of=len
        )
        return list(await asyncio.gather(*(batcher.submit(b"x" * size) for size in (1, 1, 1, 1, 8, 20, 1))))

    with ThreadPoolExecutor(1) as executor:
        assert asyncio.run(main()) == [1, 1, 1, 1, 8, 20, 1]
    assert [[len(item) for item in batch] for batch in batches] == [[1, 1, 1], [1, 8], [20], [1]]


def test_an_error_reaches_all_of_its_batch_and_no_other() -> None:
    def fail_on_zero(items: Sequence[int]) -> list[int]:
        if 0 in items:
            raise ValueError("zero")
        return list(items)

    async def main() -> None:
        batcher: Batcher[int, int] = Batcher(fail_on_zero, executor, in_flight_max=1, batch_max=100)
        failing = [batcher.submit(0), batcher.submit(1)]
        for waiter in failing:
            with pytest.raises(ValueError, match="zero"):
                await waiter
        assert await batcher.submit(2) == 2

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(main())


def test_a_waiter_that_gave_up_disturbs_no_other() -> None:
    async def main() -> int:
        batcher: Batcher[int, int] = Batcher(list, executor, in_flight_max=1, batch_max=100)
        gone, stays = batcher.submit(1), batcher.submit(2)
        gone.cancel()
        return await stays

    with ThreadPoolExecutor(1) as executor:
        assert asyncio.run(main()) == 2


@pytest.mark.parametrize(("before", "left_waiting"), [(3, 0), (4, 1)])
def test_after_a_crowd_the_next_waits_for_company_but_not_after_a_few(before, left_waiting) -> None:
    async def main() -> int:
        batcher: Batcher[int, int] = Batcher(list, executor, in_flight_max=1, batch_max=100, pause_s=3600)
        await asyncio.gather(*map(batcher.submit, range(before)))
        batcher.submit(9)
        await asyncio.sleep(0)
        return batcher.waiting

    with ThreadPoolExecutor(1) as executor:
        assert asyncio.run(main()) == left_waiting


def test_a_call_that_waited_for_others_goes_when_the_pause_is_over() -> None:
    async def main() -> list[int]:
        batcher: Batcher[int, int] = Batcher(list, executor, in_flight_max=1, batch_max=100, pause_s=0.01)
        await asyncio.gather(*map(batcher.submit, range(4)))
        return await asyncio.gather(batcher.submit(7), batcher.submit(8))

    with ThreadPoolExecutor(1) as executor:
        assert asyncio.run(main()) == [7, 8]
