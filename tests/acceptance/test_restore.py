"""A backup of a live broker, made and restored while clients go on: what was answered before is in it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import tidemill
from acceptance.serving import Served, wait_until
from tidemill.broker.embedded import open_broker
from tidemill.cli import main


@dataclass
class _Done:
    """Ids of what was answered for certain."""

    sent: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)

    def wait_for(self, count: int) -> None:
        wait_until(
            lambda: min(len(self.sent), len(self.cancelled), len(self.acknowledged)) >= count, "the load"
        )

    def so_far(self) -> _Done:
        return _Done(list(self.sent), list(self.cancelled), list(self.acknowledged))


@contextmanager
def _under_load(client: tidemill.Client) -> Iterator[_Done]:
    """Threads that send, cancel, receive and acknowledge until the block ends."""
    done, stop = _Done(), threading.Event()
    client.groups.set("g", start="first")

    def send() -> None:
        while not stop.is_set():
            done.sent.append(client.send("orders", b"x", delay="1h").id)

    def cancel() -> None:
        while not stop.is_set():
            receipt = client.send("orders", b"y", delay="1h")
            assert receipt.handle is not None
            assert client.cancel(receipt.handle) is tidemill.CancelAnswer.CANCELLED
            done.cancelled.append(receipt.id)

    def consume() -> None:
        while not stop.is_set():
            client.send("quick", b"z")
            for message in client.receive_batch("quick", "g"):
                if client.ack(message) == [True]:
                    done.acknowledged.append(message.id)

    threads = [threading.Thread(target=work) for work in (send, send, cancel, consume)]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_backup_of_a_served_broker_is_restored_under_load(tmp_path) -> None:
    """Copied while clients go on, and the copy is served at once, to clients that go on: it knows it all."""
    served, restored = Served(tmp_path / "data"), Served(tmp_path / "copy")
    try:
        served.start()
        with tidemill.Client(served.endpoint) as client, _under_load(client) as done:
            done.wait_for(50)
            known = done.so_far()
            command = ["backup", str(restored.directory), "--endpoint", served.endpoint]
            assert main.run(command) == 0
            assert main.run(command) != 0, "a copy goes into a new directory only"
        served.stop()
        restored.start()
        with tidemill.Client(restored.endpoint) as client:
            again = client.send_many([tidemill.Draft("orders", b"x", delay_ms=1, id=known.sent[0])])
            with _under_load(client) as more:
                more.wait_for(20)
            left = {m.id for m in client.receive("quick", "g", wait=0, stop_when_idle=True)}
        assert restored.stop() == 0
        assert isinstance(again[0], tidemill.SendResult) and again[0].is_repeat
        assert not set(known.acknowledged) & left
        with open_broker(restored.directory) as broker:
            waiting = {message.id for message in broker.views.pending(limit=1_000_000)}
        assert {*known.sent, *more.sent} <= waiting
        assert not {*known.cancelled, *more.cancelled} & waiting
        assert main.run(["check", str(restored.directory)]) == 0
    finally:
        served.stop()
        restored.stop()
