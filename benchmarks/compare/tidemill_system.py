"""Tidemill as users run it: `tidemill serve` in its own processes, and the Python client.

The embedded runner runs the timer; `tidemill bench pipeline` measures what Spark adds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from benchmarks.compare.messages import Messages, body_of
from benchmarks.compare.system import BATCH, Served
from tidemill.cli.child_broker import ChildBroker
from tidemill.client.client import Client
from tidemill.core.errors import StorageError, TidemillError
from tidemill.core.model import CancelAnswer, SendResult
from tidemill.core.send_answers import Answer
from tidemill.log.disk import RealDisk

_TOPIC = "compare"
_GROUP = "workers"
_WAIT = "5s"


class TidemillSystem:
    name = "tidemill"
    title = "Tidemill"
    needs_mover = False

    def missing(self, directory: Path) -> str:
        return ""

    @contextmanager
    def serving(self, directory: Path) -> Iterator[Served]:
        process = ChildBroker(directory, "--flight-port", "0", "--pipeline", "embedded")
        try:
            process.start()
            with Client(process.endpoint) as client:
                client.topics.create(_TOPIC)
                client.groups.set(_GROUP, start="first")
                yield _ServedTidemill(process, client)
        finally:
            process.stop()

    def consume(self, address: str, poll_s: float) -> Generator[list[bytes]]:
        with Client(address) as client:
            while True:
                messages = client.receive_batch(_TOPIC, _GROUP, count=BATCH, wait=_WAIT)
                if messages:
                    try:
                        yield [message.body for message in messages]
                    finally:
                        if not all(client.ack(*messages)):
                            raise StorageError("an acknowledgement came too late; the figures mean nothing")

    def move(self, address: str, poll_s: float) -> Generator[int]:
        yield from ()


def _send(client: Client, number: int, due_ms: int) -> None:
    client.send(_TOPIC, body_of(number, due_ms), at=due_ms / 1_000, id=f"{number:012d}")


class _ServedTidemill:
    def __init__(self, process: ChildBroker, client: Client) -> None:
        self._process = process
        self._client = client
        self._answers: Sequence[Answer] = ()

    @property
    def address(self) -> str:
        return self._process.endpoint

    def pids(self) -> list[int]:
        return self._process.pids()

    def send(self, number: int, due_ms: int) -> None:
        _send(self._client, number, due_ms)

    def stored(self, due_ms: int) -> list[int]:
        found = self._client.tables.pending(
            _TOPIC, start=due_ms / 1_000, end=(due_ms + 1) / 1_000, columns=["id"]
        )
        return [int(number) for number in found["id"].to_pylist()]

    def kill_and_start(self) -> bool:
        self._process.kill_and_start()
        return True

    def is_back(self, number: int, due_ms: int) -> bool:
        with Client(self.address, retry_for=0) as client:
            try:
                _send(client, number, due_ms)
            except self.away_errors:
                return False
        return True

    @property
    def away_errors(self) -> tuple[type[Exception], ...]:
        return (TidemillError,)

    def ready_to_schedule(self, messages: Messages) -> Callable[[], None]:
        bodies = pa.array((body for _, _, body in messages.rows()), pa.binary())
        table = pa.table({"body": bodies, "deliver_at": pa.array(messages.due_ms)})

        def schedule() -> None:
            self._answers = self._client.schedule(table, topic=_TOPIC)

        return schedule

    def ready_to_cancel(self, messages: Messages, numbers: Sequence[int]) -> Callable[[], int]:
        receipts = list(self._answers)
        chosen = [receipts[number - messages.first] for number in numbers]
        handles = [said.handle for said in chosen if isinstance(said, SendResult) and said.handle is not None]
        return lambda: self._client.cancel_many(handles).count(CancelAnswer.CANCELLED)

    def waiting(self) -> int:
        return self._client.status().pending

    def are_queued(self, messages: Messages) -> bool | None:
        visible = (topic.visible for topic in self._client.topics.list() if topic.name == _TOPIC)
        return next(visible) >= len(messages)

    def disk_bytes(self) -> int:
        disk, said = RealDisk(), self._client.status().fields["disk"]
        assert isinstance(said, dict)
        directory = self._process.directory
        return int(said["log_bytes"]) + sum(
            disk.allocated_bytes(directory / name) for name in ("index", "timer")
        )
