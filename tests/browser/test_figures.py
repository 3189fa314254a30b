"""The timer's figures in the dashboard: stages, work of the steps, delays and lateness by topic, ages."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

import tidemill
from acceptance.serving import Served


@pytest.fixture(scope="module")
def used(browser, tmp_path_factory):
    """A broker that has absorbed and released, with a paused topic."""
    directory = tmp_path_factory.mktemp("figures") / "data"
    flags = ("--pipeline", "embedded", "--flight-port", "0", "--lead", "2s")
    served = Served(directory, *flags).start()
    with tidemill.Client(served.endpoint) as client:
        client.topics.create("still")
        client.topics.pause("still")
        client.send("still", b"x", delay="100ms")
        for _ in range(3):
            client.send("plain", b"x")
            client.send("soon", b"x", delay="200ms")
            client.send("later", b"x", delay="2h")
        client.send("later", b"x", delay="4s")
        next(iter(client.receive("soon", group="g", wait="10s", stop_when_idle=True)))
        next(iter(client.receive("later", group="g", wait="20s", stop_when_idle=True)))
    yield served
    served.stop()


def test_the_wheel_page_shows_stages_and_work(used, visit) -> None:
    visitor = visit(used.endpoint, is_phone=True)
    page = visitor.show("wheel")
    stages = page.locator("section", has=page.get_by_role("heading", name="Stage durations"))
    for name in ("Scan", "Due", "Absorb", "Hand over", "Release", "Step, broker"):
        expect(stages.get_by_role("cell", name=name, exact=True)).to_be_visible()
    work = page.locator("section", has=page.get_by_role("heading", name="Timer work"))
    expect(work.locator("dt", has_text="Absorbed").locator("+ dd")).to_have_text("4")
    expect(work.locator("dt", has_text="Handed over").locator("+ dd")).to_have_text("1")
    assert visitor.overflow() <= 0


@pytest.mark.parametrize("is_phone", [False, True])
def test_the_history_page_shows_delays_and_topics(used, visit, is_phone) -> None:
    visitor = visit(used.endpoint, is_phone=is_phone)
    page = visitor.show("history")
    delays = page.get_by_role("table", name="Messages by requested delay")
    expect(delays).to_contain_text("≤ 3 h")
    row = page.locator("#topic-figures tbody tr", has_text="later")
    expect(row.locator("td").nth(1)).to_have_text("4")
    expect(row.locator("td").nth(2)).to_have_text("0")
    expect(page.locator("#topic-figures tbody tr", has_text="plain").locator("td").nth(2)).to_have_text("3")
    assert visitor.overflow() <= 0


def test_the_first_page_says_for_how_long_and_when_the_peak_comes(used, visit) -> None:
    page = visit(used.endpoint).show("now")
    expect(page.get_by_text("still is paused")).to_contain_text("It has been due for")
    with tidemill.Client(used.endpoint) as client:
        client.send("soon", b"x", delay="10m")
    expect(page.get_by_text("fullest minute: 1 at")).to_be_visible(timeout=20_000)
