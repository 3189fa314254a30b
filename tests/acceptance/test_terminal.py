"""Commands in a real terminal: the live picture, and the bars of what takes long."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidemill
from acceptance.serving import Served
from acceptance.terminal import PATIENCE_S, terminal
from helpers.http_broker import HttpBroker, http_broker
from tidemill.broker.embedded import open_broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[HttpBroker]:
    with http_broker(tmp_path / "data") as served:
        yield served


def test_the_live_status_outlives_its_broker(broker: HttpBroker) -> None:
    with terminal("status", "--watch", endpoint=broker.endpoint) as screen:
        screen.read_until("Nothing was sent yet")
        with tidemill.Client(broker.endpoint) as client:
            client.send("orders", b"x", delay="30m")
        screen.read_until("1 fall due")
        screen.read_until("orders")
        broker.stop()
        screen.read_until("Retrying")
        broker.start()
        screen.read_until("1 fall due")
        assert screen.interrupt() == 0


def test_the_forecast_can_be_watched(broker: HttpBroker) -> None:
    with terminal("forecast", "--watch", endpoint=broker.endpoint) as screen:
        screen.read_until("nothing falls due within 1h")
        with tidemill.Client(broker.endpoint) as client:
            client.send("orders", b"x", delay="30m")
        screen.read_until("1 fall due")
        assert screen.interrupt() == 0


def test_a_receive_shows_that_it_waits_and_that_nothing_came(broker: HttpBroker) -> None:
    with tidemill.Client(broker.endpoint) as client:
        client.send("orders", b"x", delay="30m")
    flags = ("--group", "g", "--wait", "300ms")
    with terminal("receive", "orders", *flags, endpoint=broker.endpoint) as screen:
        screen.read_until("waiting for messages of orders")
        screen.read_until("nothing arrived within 300ms")
        assert screen.process.wait(PATIENCE_S) == 0


def test_a_file_is_scheduled_with_a_bar(broker: HttpBroker, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("body,delay_ms,key\n" + "".join(f"{n},3600000,k{n}\n" for n in range(500)))
    with terminal("schedule", str(rows), "--topic", "orders", endpoint=broker.endpoint) as screen:
        screen.read_until("100%")
        screen.read_until("500 stored, 0 refused")
        assert screen.process.wait(PATIENCE_S) == 0


def test_a_backup_is_copied_with_a_bar(broker: HttpBroker, tmp_path: Path) -> None:
    with terminal("backup", str(tmp_path / "copy"), endpoint=broker.endpoint) as screen:
        screen.read_until("copying the log")
        screen.read_until("0 pending")
        assert screen.process.wait(PATIENCE_S) == 0


def test_reading_the_log_at_the_start_is_shown(tmp_path: Path) -> None:
    served = Served(tmp_path / "data")
    with open_broker(tmp_path / "data") as broker:
        for _ in range(40):
            broker.send([tidemill.Draft("orders", bytes(1000), delay_ms=3_600_000)] * 500)
    for derived in (tmp_path / "data" / "index").rglob("*"):
        if derived.is_file():
            derived.unlink()
    flags = ["--data", str(tmp_path / "data"), "--port", str(served.port), "--flight-port", "-1"]
    with terminal("serve", *flags, "--pipeline", "embedded") as screen:
        screen.read_until("reading the log")
        screen.read_until("serves on")
        screen.process.send_signal(signal.SIGTERM)
        assert screen.process.wait(PATIENCE_S) == 0
