"""Programs that fork with a client in hand, one for each run: `forking_program.py <scene> <endpoint>`.

A scene prints what went wrong; a child that hangs is ended by its alarm.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable

import pyarrow as pa

import tidemill

_PATIENCE_S = 60
_CHILDREN = 4


def _fork(act: Callable[[], object]) -> int:
    """A child that does this, and ends as programs do, with all that is done then."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(_PATIENCE_S)
        act()
        sys.exit(0)
    return pid


def _ended_well(*pids: int) -> None:
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    _expect("the ends of the children", codes, [0] * len(pids))


def _expect(what: str, found: object, expected: object) -> None:
    if found != expected:
        print(f"{what}: {found}, not {expected}", flush=True)


def answers(client: tidemill.Client) -> None:
    """Parent and children ask at once by what was one connection: each gets its own answers."""
    there = [client.send("t", b"x", delay="1h").handle for _ in range(100 * (_CHILDREN + 1))]
    absent = [tidemill.Handle(h.broker, h.topic, f"NONE{n}", h.seq) for n, h in enumerate(there)]

    def cancel(number: int) -> None:
        part = slice(100 * number, 100 * number + 100)
        handles = there[part] if number % 2 else absent[part]
        answer = "cancelled" if number % 2 else "unknown"
        _expect("answers to cancel", Counter(str(client.cancel(h)) for h in handles), Counter({answer: 100}))

    children = [_fork(lambda number=number: cancel(number)) for number in range(1, _CHILDREN + 1)]
    cancel(0)
    _ended_well(*children)


def threads(client: tidemill.Client) -> None:
    """Forks while threads send: whatever they hold at that moment, the child can send."""
    is_over = threading.Event()
    sent: Counter[str] = Counter()

    def send(name: str) -> None:
        while not is_over.is_set():
            sent[client.send("t", name, delay="1h").id] += 1

    senders = [threading.Thread(target=send, args=(f"thread {number}",)) for number in range(6)]
    for sender in senders:
        sender.start()

    def send_as_child() -> None:
        is_over.set()
        for number in range(5):
            client.send("t", f"child {number}", delay="1h")

    for _ in range(15):
        _ended_well(_fork(send_as_child))
    is_over.set()
    for sender in senders:
        sender.join(_PATIENCE_S)
    _expect("ids given twice", [name for name, count in sent.items() if count > 1], [])


def closed(client: tidemill.Client) -> None:
    client.send("t", b"x", delay="1h")
    client.close()

    def send() -> None:
        try:
            client.send("t", b"x", delay="1h")
        except tidemill.RequestError:
            return
        print("a closed client sent", flush=True)

    _ended_well(_fork(send))


def tables(client: tidemill.Client) -> None:
    """The Flight endpoint was used before the fork: the child sends its tables all the same, another way."""
    table = pa.table({"body": ["x"] * 300, "delay_ms": [3_600_000] * 300})
    _expect("stored by the parent", len(client.schedule(table, topic="t")), 300)

    def use() -> None:
        receipts = client.schedule(table, topic="t")
        said = client.cancel_many([r.handle for r in receipts if isinstance(r, tidemill.SendResult)])
        _expect("answers to cancel", Counter(map(str, said)), Counter({"cancelled": 300}))
        try:
            client.tables.pending("t")
        except tidemill.RequestError as error:
            _expect("what is said of Flight", "forked" in str(error), True)

    _ended_well(_fork(use))
    _expect("rows that wait", client.tables.pending("t").num_rows, 300)


def tasks(client: tidemill.Client) -> None:
    """A fork in the middle of an event loop: the child has its own, and the parent's goes on."""
    inner = tidemill.AsyncClient(str(client.endpoint), timeout="20s", retry_for=0)

    async def send(count: int) -> list[tidemill.SendResult]:
        return await asyncio.gather(*(inner.send("t", b"x", delay="1h") for _ in range(count)))

    async def parent() -> None:
        await send(10)
        await inner.status()
        child = os.fork()
        if child == 0:
            signal.alarm(_PATIENCE_S)
            asyncio.run(send(10))
            os._exit(0)  # the loop below on the stack is the parent's, and not to be ended here
        await send(10)
        await asyncio.to_thread(_ended_well, child)
        await send(10)
        await inner.status()
        await inner.close()

    asyncio.run(parent())
    _expect("messages that wait", len(client.pending("t")), 40)


if __name__ == "__main__":
    scene, endpoint = sys.argv[1:]
    with tidemill.Client(endpoint, timeout="20s", retry_for="20s") as client:
        {f.__name__: f for f in (answers, threads, closed, tables, tasks)}[scene](client)
