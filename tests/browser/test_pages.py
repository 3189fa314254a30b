"""What the pages show at their edges: filters and counts, due times that pass, phones, unknown addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

import tidemill
from acceptance.serving import Served
from browser.chromium import PAGES, PHONE

_COUNT = "[data-pending]"
# Keeps every text that the second column of the list has shown.
_KEEP_TEXTS = """
window.texts = [];
new MutationObserver(() => document.querySelectorAll("#pending-table td:nth-child(2)").forEach(
  (cell) => window.texts.push(cell.textContent))
).observe(document, {subtree: true, childList: true, characterData: true});
"""


@pytest.fixture(scope="module")
def shop(browser, tmp_path_factory) -> Iterator[Served]:
    """A broker with orders that share keys, one topic that is paused, and one with a long name."""
    served = Served(tmp_path_factory.mktemp("shop") / "data", "--flight-port", "0").start()
    with tidemill.Client(served.endpoint) as client:
        client.topics.create("halted")
        client.topics.pause("halted")
        client.send("halted", b"x", delay="1ms", key="held")
        for number in range(5):
            client.send("orders", b"x", delay="2h", key="even" if number % 2 == 0 else "odd")
        client.send("bills", b"x", delay="2h", key="even")
        client.send("T" * 127, b"x", delay="1h", key="k" * 128)
        client.send("loud", b"x")
        next(iter(client.receive("loud", group="g", wait="10s", stop_when_idle=True)))
    yield served
    served.stop()


def test_a_row_leaves_the_list_soon_after_its_due_time(shop, visit) -> None:
    page = visit(shop.endpoint).show("schedule")
    page.evaluate(_KEEP_TEXTS)
    with tidemill.Client(shop.endpoint) as client:
        client.send("passing", b"x", delay="4s", key="passing-1")
    page.goto(f"http://{shop.endpoint}/#/pending?key=passing-1")
    row = page.locator("#pending-table tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_have_count(0)
    expect(page.locator(_COUNT)).to_have_text("0 messages match")
    texts = page.evaluate("window.texts")
    assert any(text.startswith("in ") for text in texts)
    assert not [text for text in texts if re.search("ago|overdue", text)]


def test_what_is_due_and_not_released_is_called_overdue(shop, visit) -> None:
    page = visit(shop.endpoint).show("pending", "?topic=halted")
    expect(page.locator("#pending-table tbody tr td").nth(1)).to_have_text(re.compile("^overdue by "))


def test_a_filter_counts_what_it_matches(shop, visit) -> None:
    page = visit(shop.endpoint).show("pending", "?topic=orders&key=even")
    expect(page.locator(_COUNT)).to_have_text("3 messages match")
    page.evaluate("location.hash = '#/pending?key=even'")
    expect(page.locator(_COUNT)).to_have_text("4 messages match")
    page.evaluate("location.hash = '#/pending?topic=bills'")
    expect(page.locator(_COUNT)).to_have_text("1 message matches")
    page.evaluate("location.hash = '#/pending'")
    expect(page.locator(_COUNT)).to_have_text(re.compile(r"^\d+ messages$"))


def test_a_cancel_of_all_asks_with_the_number_and_the_filter(shop, visit) -> None:
    with tidemill.Client(shop.endpoint) as client:
        for number in range(3):
            client.send("many", b"x", delay="2h", key="a" if number else "b")
    page = visit(shop.endpoint).show("pending", "?topic=many&key=a")
    later = page.get_by_role("button", name="All 1 h later")
    later.click()
    question = page.get_by_role("button", name="Move 2 messages of many with key a by 1 h?")
    expect(question).to_be_visible()
    page.locator("#search-key").focus()  # leaving it takes the question back
    expect(question).to_have_count(0)
    later.click()
    question.click()
    status = page.locator(".head [role=status]")
    expect(status).to_have_text("2 messages moved by 1 h")
    page.get_by_role("button", name="Cancel all").click()
    page.get_by_role("button", name="Cancel 2 messages of many with key a?").click()
    expect(status).to_have_text("2 messages cancelled")
    expect(page.locator(_COUNT)).to_have_text("0 messages match")
    page.get_by_role("button", name="Cancel all").click()
    expect(status).to_have_text("no pending message matches")
    expect(page.get_by_role("button", name="Cancel all")).to_be_visible()


def test_a_cancel_of_a_range_names_its_times(shop, visit) -> None:
    query = "?topic=orders&from=2031-01-01T00:00:00&to=2031-01-02T00:00:30"
    with tidemill.Client(shop.endpoint) as client:
        client.send("orders", b"x", delay="3650d")
        client.send("orders", b"x", at="2031-01-01T12:00:00Z")
    page = visit(shop.endpoint).show("pending", query)
    expect(page.locator(_COUNT)).to_have_text("1 message matches")
    page.get_by_role("button", name="Cancel all").click()
    question = "Cancel 1 message of orders due from 2031-01-01 00:00:00 to 2031-01-02 00:00:30?"
    expect(page.get_by_role("button", name=question)).to_be_visible()


# -- a phone ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_cuts_off_no_page_of_the_menu_and_no_column(shop, visit, name) -> None:
    page = visit(shop.endpoint, is_phone=True).show(name)
    for link in page.locator("#nav a").all():
        expect(link).to_be_in_viewport(ratio=1)
    for table in page.locator(".tablewrap").all():
        assert table.evaluate("box => box.scrollWidth - box.clientWidth") <= 0, table.inner_text()


def test_a_phone_shows_topic_and_pause(shop, visit) -> None:
    visitor = visit(shop.endpoint, is_phone=True)
    page = visitor.show("topics")
    for button in page.locator("#topic-table button").all():
        box = button.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= PHONE["width"]
    page = visitor.show("pending", "?key=odd")
    for cell in page.locator("#pending-table tbody tr").first.locator("td:visible").all():
        box = cell.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE["width"]
    expect(page.locator("#pending-table tbody tr").first.get_by_text("orders")).to_be_visible()


def test_a_finger_on_a_sector_shows_what_it_holds(shop, visit) -> None:
    page = visit(shop.endpoint, is_phone=True).show("wheel")
    hint = page.get_by_text("Hover over or tap a sector")
    hint.scroll_into_view_if_needed()
    page.locator(".sector").first.tap(force=True)
    expect(hint).to_have_count(0)
    expect(page.locator("main")).to_contain_text(re.compile(r"\+ 1 s: \d+ messages?"))


# -- figures and addresses -------------------------------------------------------------------------


def test_now_and_history_give_the_same_p99(shop, visit) -> None:
    with tidemill.Client(shop.endpoint) as client:
        client.send("timed", b"x", delay="50ms")
        next(iter(client.receive("timed", group="g", wait="10s", stop_when_idle=True)))
    visitor = visit(shop.endpoint)
    tile = visitor.show("now").locator("[data-tile='Lateness p99']")
    expect(tile).to_contain_text("last 15 min")
    on_now = tile.locator(".value").text_content()
    page = visitor.show("history")
    tile = page.locator(".tile", has_text="Lateness p99")
    expect(tile).to_contain_text("last 15 minutes")
    on_history = tile.locator(".value").text_content()
    assert on_now is not None
    assert on_history is not None
    assert on_now.replace(" ", "") == on_history.replace(" ", "")
    assert re.search(r"\d", on_now)


def test_a_message_due_in_exactly_an_hour_is_due_in_the_next_hour(browser, visit, tmp_path) -> None:
    served = Served(tmp_path / "data", "--flight-port", "0").start()
    try:
        with tidemill.Client(served.endpoint) as client:
            client.send("orders", b"x", delay="1h")
        visitor = visit(served.endpoint)
        page = visitor.show("now")
        expect(page.get_by_text("fullest minute: 1 at")).to_be_visible()
        page = visitor.show("forecast", "?range=1h")
        expect(page.locator(".tile", has_text="In this span").locator(".value")).to_have_text("1")
        page.close()  # before the broker goes, so that no request of it fails
    finally:
        served.stop()


def test_an_unknown_address_is_no_page_and_offers_all(shop, visit) -> None:
    visitor = visit(shop.endpoint)
    page = visitor.page
    page.goto(f"http://{shop.endpoint}/#/nonsense?a=1")
    expect(page.get_by_role("heading", name="No such page")).to_be_visible()
    expect(page.locator("main")).to_contain_text("#/nonsense")
    expect(page.locator("#nav [aria-current]")).to_have_count(0)
    expect(page.locator("main a")).to_have_count(len(PAGES))
    page.locator("main").get_by_role("link", name="Pending").click()
    expect(page.locator("main[data-page=pending] h1")).to_have_text("Pending")
    page.goto(f"http://{shop.endpoint}/")
    expect(page.locator("main[data-page=now] h1")).to_have_text("Now")
