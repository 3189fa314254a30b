#!/usr/bin/env python3
"""Makes the screenshots of the dashboard: every page and an open message, wide and phone, light and dark.

    .venv/bin/python scripts/screenshots.py --out screenshots    all of them
    .venv/bin/python scripts/screenshots.py --docs               those of docs/images

Serves a broker on a temporary directory: some hundred thousand orders over two days with the daily peaks of
a shop, and live traffic while the pictures are taken. Needs Chromium (scripts/need_chromium.sh).
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
from playwright.sync_api import Browser, Page, sync_playwright

import tidemill
from tidemill.broker.embedded import open_broker

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("now", "forecast", "wheel", "pending", "history", "topics", "schedule")
SIZES = {"wide": (1360, 900), "phone": (390, 844)}
IMAGES = ROOT / "docs" / "images"
DOCS_SIZE = (1180, 820)
IN_DOCS = {"now": "light", "wheel": "dark", "message": "light"}
TOPICS = ("order-timeouts", "cart-reminders", "mail-digests", "webhook-retries")
SHARES = (0.45, 0.3, 0.15, 0.1)
PENDING = 400_000
HOUR_MS = 3_600_000
pause = threading.Event()  # never set


def fill(directory: Path) -> None:
    """Orders over two days, more by day than by night."""
    chance = np.random.default_rng(4)
    with open_broker(directory) as broker:
        now_ms = broker.clock.now_ms()
        ahead = chance.uniform(0, 48 * HOUR_MS, PENDING * 2)
        tide = 0.55 + 0.45 * np.sin((now_ms + ahead) / (24 * HOUR_MS) * 2 * np.pi - 2)
        ahead = ahead[chance.random(len(ahead)) < tide * np.exp(-ahead / (40 * HOUR_MS))].astype(np.int64)
        for topic, part in zip(
            TOPICS, np.split(ahead, (np.cumsum(SHARES)[:-1] * len(ahead)).astype(int)), strict=True
        ):
            for start in range(0, len(part), 1 << 16):
                due = now_ms + 90_000 + part[start : start + (1 << 16)]
                ids = chance.integers(1, 10_000_000, len(due)).tolist()
                body = [order_body(number) for number in ids]
                key = [f"order-{number}" for number in ids]
                broker.send_table(pa.table({"body": body, "deliver_at": due, "key": key}), topic=topic)


def order_body(number: int) -> bytes:
    order = {"order": number, "customer": f"c-{number % 9973}", "total": f"{number % 240}.90"}
    return json.dumps(order | {"currency": "EUR", "action": "close if unpaid"}).encode()


@contextmanager
def served(directory: Path, pipeline: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tidemill.cli.main", "serve", "--data", str(directory)]
    flags = ["--port", str(port), "--flight-port", "-1", "--pipeline", pipeline]
    process = subprocess.Popen([*command, *flags], stdout=subprocess.DEVNULL)
    try:
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1) as answer:
                    if json.load(answer)["status"] == "open":
                        break
            except OSError:
                pause.wait(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def traffic(endpoint: str, stopping: threading.Event) -> None:
    """Orders that wait seconds, a group that settles them, some that are paid in time."""
    chance = random.Random(2)
    with tidemill.Client(endpoint) as client:
        while not stopping.wait(0.1):
            receipts = [
                client.send(
                    chance.choices(TOPICS, SHARES)[0],
                    order_body(number),
                    delay=f"{chance.randint(1_000, 25_000)}ms",
                    key=f"order-{number}",
                )
                for number in (chance.randint(1, 9_999_999) for _ in range(chance.randint(1, 8)))
            ]
            if chance.random() < 0.3:
                client.cancel(receipts[0].handle)


def consume(endpoint: str, stopping: threading.Event) -> None:
    with tidemill.Client(endpoint) as client:
        while not stopping.is_set():
            for topic, group in ((TOPICS[0], "closers"), (TOPICS[1], "reminders"), (TOPICS[2], "mailer")):
                for _ in client.receive(topic, group=group, wait="100ms", stop_when_idle=True):
                    pass


def open_message(page: Page) -> None:
    """The message panel of something that waits for a while, once rescheduled, so that it has a history."""
    page.locator("#pending-table tbody tr").nth(4).click()
    dialog = page.locator("#message")
    dialog.get_by_role("button", name="Reschedule").click()
    dialog.get_by_role("button", name="1 h").click()
    dialog.locator(".note").wait_for()


@contextmanager
def chromium() -> Iterator[Browser]:
    path = subprocess.check_output([ROOT / "scripts/need_chromium.sh"], text=True).split()[0]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def shoot(browser: Browser, endpoint: str, out: Path, *, is_docs: bool) -> None:
    """Every picture in every size and scheme into `out`; or the chosen few, smaller."""
    if is_docs:
        for name, scheme in IN_DOCS.items():
            tab = Tab(browser, endpoint, DOCS_SIZE, scheme)
            tab.shoot(name, out / f"dashboard-{name}.png", is_long=False)
        return
    for (size, viewport), scheme in product(SIZES.items(), ("light", "dark")):
        tab = Tab(browser, endpoint, viewport, scheme)
        for name in (*PAGES, "message"):
            tab.shoot(name, out / f"{name}-{size}-{scheme}.png", is_long=True)


class Tab:
    """One tab of the browser, in one size and colour scheme."""

    def __init__(self, browser: Browser, endpoint: str, viewport: tuple[int, int], scheme: str) -> None:
        size = {"width": viewport[0], "height": viewport[1]}
        self._page: Page = browser.new_context(viewport=size, color_scheme=scheme).new_page()
        self._base = f"http://{endpoint}/"
        with tidemill.Client(endpoint) as client:
            soon_ms = client.status().now_ms + HOUR_MS // 2
        soon = datetime.fromtimestamp(soon_ms / 1000, UTC).astimezone()
        self._search = f"?topic={TOPICS[0]}&from={soon:%Y-%m-%dT%H:%M:00}"

    def shoot(self, name: str, path: Path, *, is_long: bool) -> None:
        """A picture of a page, or of an open message; `is_long`: also what has to be scrolled to."""
        path.parent.mkdir(parents=True, exist_ok=True)
        shown = "pending" if name == "message" else name
        self._page.goto(f"{self._base}#/{shown}{self._search if shown == 'pending' else ''}")
        self._page.locator(f"main[data-page={shown}]").wait_for()
        self._page.wait_for_timeout(2_500)
        if name == "message":
            open_message(self._page)
        self._page.screenshot(path=path, full_page=is_long and shown != "pending")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "screenshots")
    parser.add_argument("--docs", action="store_true", help="make those of docs/images instead")
    parser.add_argument("--pipeline", default="embedded", choices=("spark", "embedded"))
    parser.add_argument("--seconds", type=float, default=120, help="traffic before the first picture")
    given = parser.parse_args()
    stopping = threading.Event()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "data"
        fill(directory)
        # The browser is there before the broker, so that no picture shows what its start cost.
        with chromium() as browser, served(directory, given.pipeline) as endpoint:
            given_to = (endpoint, stopping)
            workers = [threading.Thread(target=work, args=given_to) for work in (traffic, consume)]
            for worker in workers:
                worker.start()
            pause.wait(given.seconds)
            try:
                shoot(browser, endpoint, IMAGES if given.docs else given.out, is_docs=given.docs)
            finally:
                stopping.set()
                for worker in workers:
                    worker.join()


if __name__ == "__main__":
    main()
