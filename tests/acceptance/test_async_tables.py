"""Whole tables through `AsyncClient` and a real `tidemill serve`: as through `Client`, without blocking."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

import tidemill
from acceptance.serving import Served
from tidemill import AsyncClient, CancelAnswer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory):
    data: Path = tmp_path_factory.mktemp("async-tables") / "data"
    served = Served(data, "--pipeline", "embedded", "--flight-port", "0")
    served.start()
    yield served
    served.stop()


def _later(count: int) -> pa.Table:
    return pa.table({"body": ["x"] * count, "delay_ms": [3_600_000] * count})


def test_tables_go_by_flight_there_and_back(served: Served) -> None:
    async def work() -> None:
        async with AsyncClient(served.endpoint) as client:
            answers = await client.schedule(_later(1_000), topic="there")
            assert len(answers) == 1_000 and not answers.errors
            assert client._flight._client is not None
            pending = await client.tables.pending("there", columns=["id", "topic", "seq"])
            assert set(pending["id"].to_pylist()) == {answer.id for answer in answers}

            said = await client.cancel_many([answer.handle for answer in answers[:300]])
            assert said == [CancelAnswer.CANCELLED] * 300
            rest = await client.tables.cancel(pending.slice(0, 1_000))
            assert sorted(rest.to_pylist()) == ["already-cancelled"] * 300 + ["cancelled"] * 700
            assert (await client.tables.pending("there")).num_rows == 0

            part = await client.tables.store(pd.DataFrame({"body": ["a", "b"]}), topic="now")
            assert len(part) == 2
            messages = await client.tables.messages("now", columns=["body"])
            assert messages["body"].to_pylist() == [b"a", b"b"]
            assert (await client.tables.history("now")).num_rows == 0  # nothing of it had to wait

    asyncio.run(work())


def test_a_wrong_row_is_answered_alone_and_what_is_no_table_goes_row_by_row(served: Served) -> None:
    async def work() -> None:
        async with AsyncClient(served.endpoint) as client:
            table = pa.table({"body": ["a", "b", "c"], "tag": ["fine", "a|b", ""]})
            answers = await client.schedule(table, topic="spoilt")
            assert [isinstance(answer, tidemill.SendResult) for answer in answers] == [True, False, True]
            assert list(answers.errors) == [1]
            rows = await client.schedule(({"body": text} for text in "de"), topic="spoilt")
            assert len(rows) == 2 and not rows.errors
            assert (await client.tables.messages("spoilt"))["body"].to_pylist() == [b"a", b"c", b"d", b"e"]
            with pytest.raises(tidemill.RequestError, match="is not a table"):
                await client.tables.store("rows", topic="spoilt")

    asyncio.run(work())


def test_a_request_is_read_in_parts_side_by_side(served: Served) -> None:
    async def work() -> None:
        async with AsyncClient(served.endpoint) as client:
            await client.schedule(_later(2_000), topic="parts")
            request = {"table": "pending", "topic": "parts", "columns": ["id"]}
            assert (await client.tables.schema(request)).names == ["id"]
            with pytest.raises(tidemill.RequestError, match="no table 'nothing'"):
                await client.tables.schema({"table": "nothing"})

            async def read(ticket: bytes) -> list[str]:
                return [
                    id_ async for batch in client.tables.stream(ticket) for id_ in batch["id"].to_pylist()
                ]

            tickets = await client.tables.parts(request, 3)
            found = [id_ for part in await asyncio.gather(*map(read, tickets)) for id_ in part]
            assert len(found) == len(set(found)) == 2_000
            assert sorted(found) == sorted((await client.tables.read(request))["id"].to_pylist())

    asyncio.run(work())


def test_the_loop_goes_on_while_a_table_is_under_way(served: Served) -> None:
    """The call ends only when another task has had its turn."""
    had_its_turn = threading.Event()

    async def work() -> None:
        async with AsyncClient(served.endpoint) as client:
            read = client._flight.read

            def read_when_another_was_there(request):
                assert had_its_turn.wait(60)
                return read(request)

            client._flight.read = read_when_another_was_there
            table = asyncio.create_task(client.tables.pending("loop"))
            await client.send("loop", b"x", delay="1h")
            had_its_turn.set()
            assert (await table).num_rows == 1

    asyncio.run(work())


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # loops end over open connections
def test_one_client_on_one_event_loop_after_another(served: Served) -> None:
    client = AsyncClient(served.endpoint)

    async def send() -> int:
        await client.schedule(_later(5), topic="loops")
        return (await client.tables.pending("loops")).num_rows

    assert [asyncio.run(send()) for _ in range(2)] == [5, 10]
    asyncio.run(client.close())
    with pytest.raises(tidemill.RequestError, match="closed"):
        asyncio.run(send())
    gc.collect()  # here, where the warning is expected


def test_a_client_that_is_closed_meanwhile_ends_every_wait() -> None:
    """No broker listens: the client retries, in a thread, until the client is closed."""

    async def work() -> None:
        client = AsyncClient("127.0.0.1:1", retry_for="10m")
        table = asyncio.create_task(client.tables.pending("t"))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(tidemill.TidemillError):
            await asyncio.wait_for(table, 60)

    asyncio.run(work())


def test_a_host_is_found_by_its_name_while_tables_wait_for_it(served: Served) -> None:
    """Names are looked up in the loop's own pool of threads, which tables leave alone."""
    named = served.endpoint.replace("127.0.0.1", "localhost")

    async def work() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        async with AsyncClient(named, retry_for=0) as client:
            tables = await asyncio.gather(*(client.tables.history() for _ in range(8)))
            assert len(tables) == 8

    asyncio.run(work())


_REFUSED = """
import asyncio, sys, threading, tidemill

def refused(client):
    for _ in range(600):
        try:
            client.tables.read({"table": "nothing"})
        except tidemill.RequestError:
            counts.append(1)

async def refused_too(client):
    for _ in range(600):
        try:
            await client.tables.read({"table": "nothing"})
        except tidemill.RequestError:
            counts.append(1)

async def tasks():
    async with tidemill.AsyncClient(sys.argv[1]) as client:
        await asyncio.gather(*(refused_too(client) for _ in range(4)))

counts = []
with tidemill.Client(sys.argv[1]) as client:
    threads = [threading.Thread(target=refused, args=(client,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
asyncio.run(tasks())
print(len(counts))
"""


def test_refusals_of_several_at_once_end_no_program(served: Served) -> None:
    """To close a connection that another thread uses ended the process, without a word of Python."""
    ended = subprocess.run(
        [sys.executable, "-c", _REFUSED, served.endpoint], capture_output=True, text=True, timeout=300
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, "4800"), ended.stderr


_LEFT = """
import asyncio, socket, tidemill

async def give_up():
    client = tidemill.AsyncClient(endpoint)
    try:
        await asyncio.wait_for(client.tables.pending(), 0.1)
    except TimeoutError:
        print("given up")

with socket.create_server(("127.0.0.1", 0)) as silent:
    endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
    loop = asyncio.new_event_loop()
    loop.run_until_complete(give_up())
    loop.close()
"""


def test_a_program_ends_though_a_table_of_its_is_under_way() -> None:
    """Its event loop has ended, which the table's thread waits for."""
    command = [sys.executable, "-W", "ignore", "-c", _LEFT]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout.strip()) == (0, "given up"), ended.stderr
