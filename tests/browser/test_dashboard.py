"""The dashboard in a real browser, over a real broker with a million pending messages."""

from __future__ import annotations

import json
import re
import urllib.request

import pytest
from playwright.sync_api import expect

import tidemill
from acceptance.serving import Served, free_port
from browser.chromium import PAGES

_PENDING = "[data-pending]"


def _pending(page) -> int:
    return int(page.locator(_PENDING).get_attribute("data-pending"))


@pytest.mark.parametrize("name", PAGES)
def test_every_page_shows_a_million_pending(million, visit, name) -> None:
    visitor = visit(million.endpoint)
    page = visitor.show(name)
    expect(page.locator("main h1")).to_be_visible()
    expect(page.locator("main [role=alert]")).to_have_count(0)
    assert visitor.overflow() <= 0


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_a_phone(million, visit, name, scheme) -> None:
    visitor = visit(million.endpoint, is_phone=True, color_scheme=scheme)
    page = visitor.show(name)
    assert visitor.overflow() <= 0
    assert page.evaluate("document.documentElement.dataset.theme") == scheme


def test_search_open_reschedule_and_cancel(million, visit) -> None:
    visitor = visit(million.endpoint)
    page = visitor.show("pending")
    page.wait_for_selector(_PENDING)
    before = _pending(page)
    page.fill("#search-key", "order-777")
    page.click("text=Search")
    rows = page.locator("#pending-table tbody tr")
    expect(rows).to_have_count(1)
    rows.first.click()
    dialog = page.locator("#message")
    expect(dialog.locator("h1")).to_have_text("order-777")
    expect(dialog.locator("pre")).to_contain_text('"order": 777')
    dialog.get_by_role("button", name="Hex").click()
    expect(dialog.locator("pre")).to_contain_text("000000  7b 22 6f 72")
    due = dialog.locator("dd").first.text_content()

    dialog.get_by_role("button", name="Reschedule").click()
    dialog.get_by_role("button", name="1 day").click()
    expect(dialog.locator(".note")).to_contain_text("Rescheduled to")
    expect(dialog.locator(".timeline")).to_contain_text("Rescheduled")
    assert dialog.locator("dd").first.text_content() != due

    dialog.get_by_role("button", name="Cancel").click()
    dialog.get_by_role("button", name="Cancel this message?").click()
    expect(dialog.locator(".note")).to_have_text("Cancelled. It will never be released.")
    expect(dialog.locator(".badge").first).to_have_text("cancelled")
    page.keyboard.press("Escape")
    expect(page.get_by_text("No pending message matches")).to_be_visible()
    page.click("text=Clear")
    expect(page.locator(_PENDING)).to_have_attribute("data-pending", str(before - 1))


def test_release_now_puts_it_into_its_topic(million, visit) -> None:
    page = visit(million.endpoint).show("pending", "?key=order-4242")
    page.wait_for_selector(_PENDING)
    before = _pending(page)
    page.locator("#pending-table tbody tr").first.click()
    dialog = page.locator("#message")
    dialog.get_by_role("button", name="Release now").click()
    expect(dialog.locator(".note")).to_have_text("Released now.")
    expect(page.locator(_PENDING)).to_have_attribute("data-pending", str(before - 1))
    dialog.get_by_label("Close").click()
    page.goto(f"http://{million.endpoint}/#/topics")
    expect(page.locator("#topic-table tbody tr").first).to_contain_text("Pause")


def test_schedule_then_open_then_move_to_a_time(million, visit) -> None:
    page = visit(million.endpoint).show("schedule")
    page.fill("#send-topic", "from-the-form")
    page.fill("#send-body", "<b>not markup</b>")
    page.fill("#send-key", "form-1")
    page.fill("#send-properties", "source=form")
    page.fill("#send-amount", "2")
    page.select_option("#send-unit", "3600000")
    page.get_by_role("button", name="Schedule").click()
    receipt = page.locator("#result")
    expect(receipt).to_contain_text("Scheduled")
    receipt.get_by_role("button", name="Open message").click()
    dialog = page.locator("#message")
    expect(dialog.locator("pre")).to_have_text("<b>not markup</b>")
    expect(dialog).to_contain_text("source")
    dialog.get_by_role("button", name="Reschedule").click()
    dialog.locator("#reschedule-at").fill("2031-05-06T07:08:09")
    dialog.get_by_role("button", name="Move").click()
    expect(dialog.locator(".note")).to_contain_text("Rescheduled to 2031-05-06 07:08:09")
    page.keyboard.press("Escape")
    page.fill("#send-properties", "nonsense")
    page.get_by_role("button", name="Schedule").click()
    expect(page.locator("main [role=alert]")).to_contain_text("write name=value")


def test_topics_are_made_paused_and_resumed(million, visit) -> None:
    page = visit(million.endpoint).show("topics")
    page.get_by_role("button", name="New topic").click()
    page.fill("#new-topic", "made-here")
    page.fill("#new-queues", "3")
    page.get_by_role("button", name="Create").click()
    row = page.locator("tr[data-topic=made-here]")
    expect(row).to_contain_text("3")
    row.get_by_role("button", name="Pause").click()
    expect(row.locator(".badge")).to_have_text("paused")
    row.get_by_role("button", name="Resume").click()
    expect(row.locator(".badge")).to_have_count(0)


def test_what_is_held_is_shown_and_resumed(million, visit) -> None:
    page = visit(million.endpoint).show("now")
    with tidemill.Client(million.endpoint) as client:
        client.admin.hold("releases")
        client.admin.hold("absorbing")
        held = page.locator("[data-hold]")
        expect(held).to_have_count(2)
        expect(held.first).to_contain_text("Releases are held since")
        client.send("held-here", b"x", delay="1ms")
        expect(page.locator("main")).to_contain_text("releases are held for the whole broker")
        page.get_by_role("button", name="Resume releases").click()
        expect(held).to_have_count(1)
        page.get_by_role("button", name="Resume absorbing").click()
        expect(held).to_have_count(0)
        assert client.status().fields["holds"] == {"releases_since_ms": None, "absorbing_since_ms": None}


def test_the_forecast_zooms_into_what_is_dragged(million, visit) -> None:
    page = visit(million.endpoint).show("forecast", "?range=1d")
    expect(page.locator("main .panel h2 + span")).to_have_text("per 15 min")
    box = page.locator(".u-over").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.5, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.52, middle, steps=5)
    page.mouse.up()
    expect(page.get_by_role("button", name="Zoom out")).to_be_visible()
    expect(page.locator("main .panel h2 + span")).to_have_text(re.compile("per (minute|15 s)"))
    page.get_by_role("button", name="Zoom out").click()
    expect(page.locator("main .panel h2 + span")).to_have_text("per 15 min")


def test_everything_can_be_reached_with_the_keyboard(million, visit) -> None:
    page = visit(million.endpoint).show("now")
    for name in ("forecast", "wheel", "history", "topics", "schedule"):
        page.keyboard.press(name[0])
        page.wait_for_selector(f"main[data-page={name}]")
        page.evaluate("document.activeElement.blur()")
    page.keyboard.press("/")
    page.wait_for_selector("main[data-page=pending]")
    expect(page.locator("#search-key")).to_be_focused()
    page.keyboard.type("order-5")
    page.keyboard.press("Enter")
    expect(page.locator("#pending-table tbody tr")).to_have_count(1)
    page.locator("#pending-table .link").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#message")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#message")).not_to_be_visible()
    page.keyboard.press("d")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_figures_change_without_a_reload(million, visit) -> None:
    sent = {"topic": "live", "body": "x", "delay_ms": 25_000_000}
    _ask(million.endpoint, "/v1/messages", sent)
    page = visit(million.endpoint).show("pending", "?topic=live")
    for count in ("1", "2", "3"):
        expect(page.locator(_PENDING)).to_have_attribute("data-pending", count)
        _ask(million.endpoint, "/v1/messages", sent)


# -- other brokers --------------------------------------------------------------------------------


def test_an_empty_broker_says_what_to_do_and_a_dead_one_too(browser, visit, tmp_path) -> None:
    served = Served(tmp_path / "data", "--pipeline", "embedded", "--flight-port", "0").start()
    try:
        visitor = visit(served.endpoint)
        words = {
            "now": "Nothing was sent yet",
            "forecast": "Nothing is due in this span",
            "wheel": "in the wheel",
            "pending": "No pending messages",
            "history": "Nothing was released in this time",
            "topics": "There are no topics yet",
        }
        for name, text in words.items():
            expect(visitor.show(name).get_by_text(text).first).to_be_visible()
        visitor.forgiven = ["ERR_", "503"]
    finally:
        served.stop()
    page = visitor.page
    expect(page.locator("#foot")).to_contain_text("no answer")
    page.evaluate("location.hash = '#/pending'")
    expect(page.locator("main")).to_contain_text("Start it with tidemill serve")


def test_a_broker_that_asks_who_you_are(browser, visit, tmp_path) -> None:
    path = tmp_path / "permissions.toml"
    path.write_text(
        '[users.boss]\ntoken = "boss-token-1"\n[[users.boss.allow]]\n'
        'verbs = ["*"]\ntopics = ["*"]\ngroups = ["*"]\n'
        '[users.guest]\ntoken = "guest-token-1"\n[[users.guest.allow]]\n'
        'verbs = ["look"]\ntopics = ["*"]\ngroups = ["*"]\n'
    )
    path.chmod(0o600)
    flags = ("--pipeline", "embedded", "--flight-port", "0", "--auth", str(path))
    served = Served(tmp_path / "data", *flags)
    served.prepare("orders")
    served.start()
    try:
        visitor = visit(served.endpoint)
        visitor.forgiven = ["401"]
        page = visitor.page
        page.goto(f"http://{served.endpoint}/")
        page.fill("#token", "wrong-token-1")
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("main [role=alert]")).to_contain_text("unknown token")
        page.fill("#token", "guest-token-1")
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#foot")).to_contain_text("guest")
        page = visitor.show("topics")
        expect(page.locator("main")).to_contain_text("read only")
        expect(page.get_by_role("button", name="Pause")).to_have_count(0)
        expect(visitor.show("schedule").locator("main")).to_contain_text("does not allow sending")
        page.get_by_role("button", name="Sign out").click()
        page.fill("#token", "boss-token-1")
        page.get_by_role("button", name="Sign in").click()
        page = visitor.show("topics")
        expect(page.get_by_role("button", name="Pause")).to_have_count(1)
        page.close()  # before the broker goes, so that no request of it fails
    finally:
        served.stop()


def test_a_port_without_a_server_is_no_dashboard(browser) -> None:
    page = browser.new_page()
    with pytest.raises(Exception, match="ERR_CONNECTION_REFUSED"):
        page.goto(f"http://127.0.0.1:{free_port()}/")
    page.close()


def _ask(endpoint: str, path: str, content: dict) -> dict:
    request = urllib.request.Request(
        f"http://{endpoint}{path}", json.dumps(content).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_a_dead_letter_is_shown_and_sent_again(million, visit) -> None:
    _ask(million.endpoint, "/v1/messages", {"topic": "letters", "body": "too hard", "keys": ["dead-1"]})
    wanted = {"topic": "letters", "group": "weary", "wait_ms": 10_000}
    (delivery,) = _ask(million.endpoint, "/v1/receive", wanted)["deliveries"]
    _ask(million.endpoint, "/v1/dead-letters", {"ack_tokens": [delivery["ack_token"]]})
    page = visit(million.endpoint).show("topics")
    letters = page.locator("#dead-letters")
    expect(letters.locator("tbody tr")).to_have_count(1)
    expect(letters).to_contain_text("dead-1")
    letters.get_by_role("button", name="Resend", exact=True).click()
    expect(letters).to_contain_text("No dead letters")
    (again,) = _ask(million.endpoint, "/v1/receive", wanted)["deliveries"]
    assert again["body"] == "too hard"
