"""A client beside `tidemill serve` finds the Unix socket by itself, and finds it again after a kill -9."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import tidemill
from acceptance.serving import Served, wait_until


@pytest.fixture
def served(tmp_path):
    served = Served(tmp_path / "data")
    served.start()
    yield served
    served.stop()


def _connections_in_use(pid: int) -> int:
    """Connections to Unix sockets of brokers that a process has, by the kernel."""
    ends = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    inodes = {end[8:-1] for end in ends if end.startswith("socket:[")}
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    named = [row for row in rows if len(row) == 8 and row[7].startswith("@tidemill-") and row[6] in inodes]
    return sum(row[5] == "03" for row in named)  # connected; 01 is the one that listens


def test_threads_use_the_unix_socket_and_find_it_again(served):
    (pid,) = served.broker_pids()
    with tidemill.Client(served.endpoint) as client:
        receipts = [client.send("orders", b"x", delay="1h") for _ in range(3)]
        assert _connections_in_use(pid) == 1
        served.kill_broker()
        receipts += [client.send("orders", b"x", delay="1h") for _ in range(3)]
        wait_until(lambda: served.broker_pids() not in ([], [pid]), "another broker process")
        receipts.append(client.send("orders", b"x", delay="1h"))
        (pid,) = served.broker_pids()
        assert _connections_in_use(pid) == 1
        assert {row.id for row in client.pending("orders")} == {receipt.id for receipt in receipts}


def test_tasks_use_the_unix_socket(served):
    (pid,) = served.broker_pids()

    async def send() -> tuple[int, int]:
        async with tidemill.AsyncClient(served.endpoint) as client:
            for _ in range(3):
                await client.send("orders", b"x", delay="1h")
            return _connections_in_use(pid), len(await client.pending("orders"))

    assert asyncio.run(send()) == (1, 3)


def test_a_client_that_is_gone_leaves_no_thread_behind(served):
    (pid,) = served.broker_pids()
    for _ in range(80):  # more than there are places
        with tidemill.Client(served.endpoint) as client:
            client.send("orders", b"x", delay="1h")
            client.send("orders", b"x", delay="1h")
    wait_until(lambda: _connections_in_use(pid) == 0, "the last connection to end")
    with tidemill.Client(served.endpoint) as client:
        assert client.status().pending == 160
