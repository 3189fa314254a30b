"""Measures what an open dashboard costs its broker: a real Chromium on every page, with ten million pending.

    .venv/bin/python -m benchmarks.dashboard_cost --data DIR          fills DIR first if it is not there
    .venv/bin/python -m benchmarks.dashboard_cost --data DIR --fill   only fills it, to measure later

For each page: the time from requesting it until it has loaded, and the share of a core that the broker's
processes use while it stays open, compared with no page. Then the lateness of a few timed messages (half of
them near, half through the wheel) without requests, with all requests of the pages every two seconds, and
again without.
As a reference it measures how late an idle thread wakes: the figures are valid only where that is
small. Needs scripts/need_chromium.sh.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from playwright.sync_api import Page, sync_playwright

import tidemill
from tidemill.broker.embedded import open_broker

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("now", "forecast", "wheel", "pending", "history", "topics", "schedule")
FRAME = 1 << 16
HOUR_MS = 3_600_000
TOPICS = ("order-timeouts", "mail-digests", "cart-reminders", "webhook-retries")
PROBE = "probe"
PROBES_PER_S = 20
TICKS = os.sysconf("SC_CLK_TCK")
pause = threading.Event()  # never set
Row = dict[str, float | str]


def fill(directory: Path, pending: int) -> None:
    """Messages over two days from in an hour on, with keys and bodies of 100 bytes."""
    chance = np.random.default_rng(7)
    with open_broker(directory) as broker:
        first_ms = broker.clock.now_ms() + HOUR_MS
        for number, start in enumerate(range(0, pending, FRAME)):
            ids = range(start, min(pending, start + FRAME))
            due = first_ms + chance.integers(0, 48 * HOUR_MS, len(ids))
            body = [b'{"order": %d, "note": "%070d"}' % (i, i) for i in ids]
            table = pa.table({"body": body, "deliver_at": due, "key": [f"order-{i}" for i in ids]})
            broker.send_table(table, topic=TOPICS[number % len(TOPICS)])


@contextmanager
def served(directory: Path) -> Iterator[tuple[str, int]]:
    """A broker on this directory that has absorbed everything: its endpoint and process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "tidemill", "serve", "--data", str(directory), "--port", str(port)]
    command += ["--flight-port", "-1", "--pipeline", "embedded", "--lead", "10s"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with tidemill.Client(f"127.0.0.1:{port}", retry_for="120s") as client:
            client.status()  # waits until it answers
        while unabsorbed(port):
            pause.wait(0.5)
        yield f"127.0.0.1:{port}", process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def unabsorbed(port: int) -> float:
    """How many messages are not in the wheel yet."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    name = "tidemill_pipeline_unabsorbed_messages "
    return next(float(line.split()[1]) for line in lines if line.startswith(name))


def used_s(pid: int) -> float:
    """Processor time of a process and everything below it so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    total = (int(fields[11]) + int(fields[12])) / TICKS
    children = [int(c) for t in Path(f"/proc/{pid}/task").glob("*/children") for c in t.read_text().split()]
    return total + sum(used_s(child) for child in children)


def at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else -1


class Traffic:
    """Timed messages at an even pace, and how late each was released by the broker's own account."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._stops = threading.Event()
        self._late: list[int] = []
        with tidemill.Client(endpoint) as client:
            client.send(PROBE, b"the first makes the topic")
        self._machine_late: list[float] = []
        works = (self._send, self._receive, self._watch_machine)
        self._threads = [threading.Thread(target=work) for work in works]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        with tidemill.Client(self._endpoint) as client:
            number = 0
            while not self._stops.wait(1 / PROBES_PER_S):
                number += 1
                client.send(PROBE, b"x" * 100, delay="12s" if number % 2 else "1500ms")

    def _receive(self) -> None:
        with tidemill.Client(self._endpoint) as client:
            while not self._stops.is_set():
                for message in client.receive_batch(PROBE, "probes", wait=0.5):
                    if message.deliver_at_ms is not None:
                        self._late.append(message.released_at_ms - message.deliver_at_ms)
                    client.ack(message)

    def _watch_machine(self) -> None:
        """How late a thread wakes up that has nothing to do: what the machine itself adds."""
        while not self._stops.is_set():
            due_s = time.monotonic() + 0.02
            pause.wait(0.02)
            self._machine_late.append((time.monotonic() - due_s) * 1000)

    def take(self) -> Row:
        late, self._late = sorted(self._late), []
        machine, self._machine_late = sorted(self._machine_late), []
        return {
            "p50_ms": at(late, 0.5),
            "p99_ms": at(late, 0.99),
            "count": len(late),
            "machine_p99_ms": at(machine, 0.99),
        }

    def stop(self) -> None:
        self._stops.set()
        for thread in self._threads:
            thread.join()


def show(page: Page, endpoint: str, name: str) -> float:
    """Go to a page in a fresh document; milliseconds until nothing on it is loading any more."""
    page.goto("about:blank")
    began_s = time.monotonic()
    page.goto(f"http://{endpoint}/#/{name}")
    page.wait_for_selector(f"main[data-page={name}] h1")
    page.locator("main .skeleton").first.wait_for(state="detached")
    return (time.monotonic() - began_s) * 1000


def used_percent(pid: int, page: Page, seconds: float) -> float:
    """How much of a core the broker uses in the next seconds; the page lives meanwhile."""
    before_s, began_s = used_s(pid), time.monotonic()
    page.wait_for_timeout(seconds * 1000)
    return (used_s(pid) - before_s) / (time.monotonic() - began_s) * 100


def costs(endpoint: str, pid: int, page: Page, seconds: float) -> Iterator[Row]:
    """Each page on a broker that has nothing else to do, so that its own use shows."""
    yield {"page": "none", "core_percent": used_percent(pid, page, seconds)}
    for name in PAGES:
        shown_ms = show(page, endpoint, name)
        yield {"page": name, "shown_ms": shown_ms, "core_percent": used_percent(pid, page, seconds)}
    page.goto("about:blank")


def lateness(endpoint: str, asked: list[str], seconds: float) -> Iterator[Row]:
    """The lateness of messages without requests, with those of all pages every two seconds, and without.

    The browser is closed by then: usually it runs on another machine, and here it would use a core.
    """
    traffic = Traffic(endpoint)
    try:
        pause.wait(14)  # until far probes fall due as well
        for look in ("no page", "all pages", "no page again"):
            traffic.take()
            until_s = time.monotonic() + seconds
            while (began_s := time.monotonic()) < until_s:
                for url in asked if look == "all pages" else ():
                    with urllib.request.urlopen(url, timeout=30) as answer:
                        answer.read()
                pause.wait(max(0.0, min(until_s, began_s + 2) - time.monotonic()))
            yield {"late": look, **traffic.take()}
    finally:
        traffic.stop()


def measure(endpoint: str, pid: int, seconds: float) -> Iterator[Row]:
    chromium = subprocess.check_output([ROOT / "scripts/need_chromium.sh"], text=True).split()[0]
    asked: dict[str, str] = {}  # by path: what the pages have asked for last
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1360, "height": 900})
        page.on("request", lambda request: asked.update({request.url.partition("?")[0]: request.url}))
        show(page, endpoint, "now")  # so that no page pays for the browser's own start
        page.goto("about:blank")
        yield from costs(endpoint, pid, page, seconds)
        browser.close()
    yield from lateness(endpoint, [url for url in asked.values() if "/v1/" in url], seconds * 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pending", type=int, default=10_000_000)
    parser.add_argument("--fill", action="store_true", help="only fill the directory")
    parser.add_argument("--seconds", type=float, default=8, help="how long each page stays open")
    given = parser.parse_args()
    if not given.data.exists():
        fill(given.data, given.pending)
    if given.fill:
        return
    with served(given.data) as (endpoint, pid):
        for row in measure(endpoint, pid, given.seconds):
            rounded = {k: round(v, 1) if isinstance(v, float) else v for k, v in row.items()}
            print(json.dumps(rounded), flush=True)


if __name__ == "__main__":
    main()
