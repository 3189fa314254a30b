#!/usr/bin/env python3
"""Makes the pictures of the terminal again: `status --watch` and `forecast`, drawn by the commands' own code.

    .venv/bin/python scripts/terminal_pictures.py            into docs/images

Serves a broker of its own on a directory that is thrown away, with a tide of orders in the next hour and live
traffic, looks at it for half a minute and keeps the last look.
"""

from __future__ import annotations

import io
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console, RenderableType

import tidemill
from tidemill.cli.forecast import drawn, painted
from tidemill.cli.status_picture import Seen, picture_of
from tidemill.core.clock import stopwatch_s

OUT = Path(__file__).resolve().parent.parent / "docs" / "images"
LOOKS = 30
COLUMNS = 104
HOUR_MS = 3_600_000
TOPICS = {"order-timeouts": 60_000, "cart-reminders": 40_000, "mail-digests": 12_000}
pause = threading.Event()  # never set


@contextmanager
def served(directory: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ["--data", str(directory), "--port", str(port), "--pipeline", "embedded", "--flight-port", "0"]
    command = [sys.executable, "-m", "tidemill.cli.main", "serve", *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while not is_open(port):
            pause.wait(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def is_open(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1) as answer:
            return bool(json.load(answer)["status"] == "open")
    except OSError:
        return False


def fill(client: tidemill.Client) -> None:
    """A tide in the next hour."""
    chance = np.random.default_rng(7)
    for topic, count in TOPICS.items():
        spread = np.concatenate(
            (
                chance.normal(0.3 * HOUR_MS, 0.1 * HOUR_MS, count // 2),
                chance.uniform(0, 2 * HOUR_MS, count // 2),
            )
        )
        due = np.clip(spread, 8_000, None).astype(np.int64)
        client.schedule(pa.table({"body": [b"close if unpaid"] * len(due), "delay_ms": due}), topic=topic)


def traffic(endpoint: str, stopping: threading.Event) -> None:
    """Orders that wait some seconds; now and then one is paid in time."""
    chance = np.random.default_rng(3)
    with tidemill.Client(endpoint) as client:
        while not stopping.wait(0.1):
            for number in range(int(chance.integers(5, 40))):
                delay_ms = int(chance.integers(500, 9_000))
                receipt = client.send("order-timeouts", b"close if unpaid", delay=delay_ms / 1_000)
                if number % 7 == 0:
                    client.cancel(receipt.handle)


def save(name: str, title: str, picture: RenderableType) -> None:
    screen = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    screen.print(picture)
    svg = screen.export_svg(title=title)
    # The fonts of the reader's machine will do; nothing is fetched from elsewhere.
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    path = OUT / f"{name}.svg"
    path.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")
    print(path)


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    stopping = threading.Event()
    with tempfile.TemporaryDirectory() as place, served(Path(place) / "data") as endpoint:
        busy = threading.Thread(target=traffic, args=(endpoint, stopping))
        with tidemill.Client(endpoint) as client:
            fill(client)
            busy.start()
            seen = Seen("127.0.0.1:8081")
            for _ in range(LOOKS):
                pause.wait(1.0)
                seen.add(client.status(), stopwatch_s(), client.topics.list(), client.forecast(horizon="1h"))
            save("terminal-status", "tidemill status --watch", picture_of(seen))
            lines = drawn(client.forecast(horizon="1h"), client.status().now_ms, COLUMNS - 36)
            save("terminal-forecast", "tidemill forecast", painted(lines))
        stopping.set()
        busy.join()


if __name__ == "__main__":
    main()
