"""A real, headless Chromium on the dashboard that notices what a user does not: errors, strange requests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

PAGES = ("now", "forecast", "wheel", "pending", "history", "topics", "schedule")
WIDE = {"width": 1360, "height": 900}
PHONE = {"width": 390, "height": 844}
# Tests run side by side on small machines; a page that is right comes long before this.
_PATIENCE_MS = 30_000
expect.set_options(timeout=_PATIENCE_MS)

NO_CHROMIUM = "no Chromium on this machine: run scripts/need_chromium.sh, or set CHROMIUM to the path of one"


def chromium_path() -> str | None:
    names = (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if name and (found := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
        yield browser
        browser.close()


class Visitor:
    """One tab on the dashboard of one broker."""

    def __init__(self, browser: Browser, endpoint: str, *, is_phone: bool = False, **given: Any) -> None:
        self.base = f"http://{endpoint}"
        self._context = browser.new_context(viewport=PHONE if is_phone else WIDE, has_touch=is_phone, **given)
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(_PATIENCE_MS)
        self.problems: list[str] = []
        self.forgiven: list[str] = []  # parts of messages on the console that a test brings about itself
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("request", lambda request: self._on_request(request.url))

    def _on_console(self, message: Any) -> None:
        is_problem = message.type in ("error", "warning")
        if is_problem and not any(part in message.text for part in self.forgiven):
            self.problems.append(f"console: {message.text}")

    def _on_request(self, url: str) -> None:
        if not url.startswith((self.base + "/", "data:")):
            self.problems.append(f"a request to another host: {url}")

    def show(self, name: str, query: str = "") -> Page:
        """Go to a page and wait until nothing on it is loading any more."""
        self.page.goto(f"{self.base}/#/{name}{query}")
        self.page.wait_for_selector(f"main[data-page={name}]")
        expect(self.page.locator("main .skeleton")).to_have_count(0)
        return self.page

    def overflow(self) -> int:
        """By how many pixels the page is wider than the screen."""
        script = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return int(self.page.evaluate(script))

    def close(self) -> None:
        self._context.close()
