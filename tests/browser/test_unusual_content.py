"""The dashboard with unusual content, clocks that differ, brokers that fail, and the keyboard alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Page, expect

import tidemill
from acceptance.serving import Served

_MARKUP = "<img/src=x/onerror=window.wasRun=1>"
_JSON = b'{"big": 12345678901234567890, "twice": 1.0, "twice": 2, "text": "a\\u0041 {[,:", "none": {}}'
_LARGE = b"z" * (4 << 20)
# As if the viewer's machine were more than a year behind.
_WRONG_CLOCK = """
const behind = 400 * 86400000, Right = Date;
window.Date = class extends Right {
  constructor(...given) { given.length ? super(...given) : super(Right.now() - behind); }
  static now() { return Right.now() - behind; }
};
"""


@pytest.fixture(scope="module")
def odd(browser, tmp_path_factory) -> Iterator[Served]:
    """A broker with messages and topics that try to be something else."""
    served = Served(tmp_path_factory.mktemp("odd") / "data", "--flight-port", "0").start()
    with tidemill.Client(served.endpoint) as client:
        client.send(
            "orders", _MARKUP, delay="2h", key=_MARKUP, tag="<b>t</b>", properties={"<i>p</i>": _MARKUP}
        )
        client.send("orders", _JSON, delay="3h", key="json")
        client.send("orders", _LARGE, delay="3h", key="large")
        client.send("constructor", b"", delay="4h", key="__proto__")
        client.send("%own%", b"x", delay="3650d", key="k" * 256)
        client.send("T" * 127, b"x", delay="1h")
    yield served
    served.stop()


def _open(page: Page, key: str) -> None:
    page.fill("#search-key", key)
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#pending-table tbody tr")).to_have_count(1)
    page.locator("#pending-table tbody tr").click()
    expect(page.locator("#message pre")).to_be_visible()


def test_no_message_becomes_markup(odd, visit) -> None:
    visitor = visit(odd.endpoint)
    for name in ("forecast", "topics", "pending"):
        visitor.show(name)
        assert visitor.overflow() <= 0
    page = visitor.page
    _open(page, _MARKUP)
    dialog = page.locator("#message")
    expect(dialog.locator("h1")).to_have_text(_MARKUP)
    expect(dialog.locator("pre")).to_have_text(_MARKUP)
    expect(dialog.locator("dt.mono")).to_have_text("<i>p</i>")
    assert page.evaluate("window.wasRun") is None


def test_json_is_indented_and_otherwise_left_alone(odd, visit) -> None:
    page = visit(odd.endpoint).show("pending")
    _open(page, "json")
    text = page.locator("#message pre").text_content()
    assert text == (
        '{\n  "big": 12345678901234567890,\n  "twice": 1.0,\n  "twice": 2,\n'
        '  "text": "a\\u0041 {[,:",\n  "none": {}\n}'
    )


def test_a_large_body_is_shown_in_part_and_then_whole(odd, visit) -> None:
    page = visit(odd.endpoint).show("pending")
    _open(page, "large")
    dialog = page.locator("#message")
    assert len(dialog.locator("pre").text_content()) == 64 << 10
    dialog.get_by_role("button", name="Show all").click()
    expect(dialog.get_by_role("button", name="Show all")).to_have_count(0)
    assert len(dialog.locator("pre").text_content()) == len(_LARGE)


def test_topics_of_any_name_are_listed_and_counted(odd, visit) -> None:
    page = visit(odd.endpoint).show("topics")
    for name in ("constructor", "%own%", "T" * 127):
        cells = page.locator(f"tr[data-topic='{name}'] td.num")
        # queues, pending, held back, sent, released, cancelled, in topic, the button
        expect(cells.nth(1)).to_have_text("1")
        expect(cells.nth(2)).to_have_text("0")
        expect(cells.nth(7).get_by_role("button")).to_be_in_viewport()


def test_a_wrong_clock_in_the_browser_changes_nothing(odd, visit) -> None:
    visitor = visit(odd.endpoint)
    visitor.page.add_init_script(_WRONG_CLOCK)
    with tidemill.Client(odd.endpoint) as client:
        now_ms = client.status().now_ms
    with visitor.page.expect_request("**/v1/forecast/window*") as asked:
        visitor.show("now")
    from_ms = int(re.search(r"from_ms=(\d+)", asked.value.url)[1])  # type: ignore[index]
    assert abs(now_ms - from_ms) < 86_400_000
    page = visitor.show("schedule")
    page.get_by_role("button", name="At a time").click()
    assert page.locator("#send-at").input_value()[:4] == str(
        datetime.fromtimestamp(now_ms / 1000 + 600, UTC).year
    )
    page = visitor.show("pending", "?key=json")
    expect(page.locator("#pending-table tbody tr td").nth(1)).to_contain_text("in 2 h")


@pytest.fixture
def two_levels(tmp_path) -> Iterator[Served]:
    served = Served(tmp_path / "data", "--flight-port", "0", "--levels", "10m 1h").start()
    yield served
    served.stop()


def test_the_form_asks_the_broker_how_many_levels_there_are(odd, two_levels, visit) -> None:
    page = visit(odd.endpoint).show("schedule")
    page.get_by_role("button", name="By level").click()
    expect(page.locator("label[for=send-level]")).to_have_text("Delay level (1 to 18)")
    page = visit(two_levels.endpoint).show("schedule")
    page.get_by_role("button", name="By level").click()
    expect(page.locator("label[for=send-level]")).to_have_text("Delay level (1 to 2)")
    expect(page.locator("#send-level")).to_have_value("2")
    page.fill("#send-topic", "orders")
    page.fill("#send-level", "3")
    page.get_by_role("button", name="Schedule").click()
    assert page.locator("#send-level").evaluate("field => field.validity.rangeOverflow")
    expect(page.locator("#result")).to_have_count(0)
    page.fill("#send-level", "1")
    page.get_by_role("button", name="Schedule").click()
    expect(page.locator("#result")).to_contain_text(re.compile("in (10 min|9 min 59 s)"))


def test_the_forecast_can_be_looked_at_closer_without_dragging(odd, visit) -> None:
    page = visit(odd.endpoint).show("forecast", "?range=1d")
    step = page.locator("main .panel h2 + span")
    expect(step).to_have_text("per 15 min")
    page.get_by_role("button", name="Zoom in").focus()
    page.keyboard.press("Enter")
    expect(step).to_have_text(re.compile("per (5|15) min"))
    expect(page.get_by_role("button", name="Zoom out")).to_be_visible()
    for _ in range(3):
        page.get_by_role("button", name="Zoom in").press("Enter")
    expect(step).to_have_text("per minute")
    before = page.locator(".tile .sub").first.text_content()
    page.get_by_role("button", name="Later").press("Enter")
    expect(page.locator(".tile .sub").first).not_to_have_text(before)


def test_a_finger_on_a_bar_looks_closer(odd, visit) -> None:
    page = visit(odd.endpoint, is_phone=True).show("forecast", "?range=7d")
    step = page.locator("main .panel h2 + span")
    expect(step).to_have_text(re.compile("per (hour|6 h)"))
    box = page.locator(".u-over").bounding_box()
    assert box is not None
    page.touchscreen.tap(box["x"] + 4, box["y"] + box["height"] / 2)
    expect(step).to_have_text(re.compile("per (5 min|minute|15 min)"))
    expect(page.get_by_role("button", name="Zoom out")).to_be_visible()


def test_a_message_that_is_open_is_seen_to_fall_due(odd, visit) -> None:
    with tidemill.Client(odd.endpoint) as client:
        receipt = client.send("falling", b"x", delay="2h", key="falling-1")
        page = visit(odd.endpoint).show("pending")
        _open(page, "falling-1")
        dialog = page.locator("#message")
        dialog.get_by_role("button", name="Hex").click()
        expect(dialog.locator(".badge").first).to_have_text("pending")
        client.reschedule(receipt.handle, delay=0)
    expect(dialog.locator(".badge").first).to_have_text("released")
    expect(dialog.locator(".timeline")).to_contain_text("Released into its topic")
    expect(dialog.get_by_role("button", name="Cancel")).to_have_count(0)
    expect(dialog.get_by_role("button", name="Hex")).to_have_attribute("aria-pressed", "true")


def test_what_is_due_and_held_says_why(odd, visit) -> None:
    with tidemill.Client(odd.endpoint) as client:
        client.topics.create("halted")
        client.topics.pause("halted")
        client.send("halted", b"x", delay="1ms")
        visitor = visit(odd.endpoint)
        page = visitor.show("now")
        tile = page.locator("[data-tile='Held back']")
        expect(tile).to_contain_text("1paused")
        expect(page.locator("main")).to_contain_text("1 message that is due waits: halted is paused.")
        page = visitor.show("topics")
        expect(page.locator("tr[data-topic=halted] td.num").nth(2)).to_have_text("1")
        # The keyboard stays on its button while the table is drawn anew around it.
        page.locator("tr[data-topic=halted] button").focus()
        client.send("newcomer", b"x")
        expect(page.locator("tr[data-topic=newcomer]")).to_be_visible()
        expect(page.locator("tr[data-topic=halted] button")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("tr[data-topic=halted] .badge")).to_have_count(0)
        expect(page.locator("tr[data-topic=halted] button")).to_be_focused()


def test_a_broker_that_goes_and_comes_back(browser, visit, tmp_path) -> None:
    served = Served(tmp_path / "data", "--flight-port", "0").start()
    try:
        with tidemill.Client(served.endpoint) as client:
            client.send("orders", b"x", delay="1h", key="o-1")
        visitor = visit(served.endpoint)
        visitor.forgiven = ["ERR_", "503"]
        page = visitor.show("pending")
        page.locator("#pending-table tbody tr").click()
        expect(page.locator("#message pre")).to_be_visible()
        served.stop()
        page.get_by_role("button", name="Release now").click()
        expect(page.locator("#message [role=alert]")).to_contain_text("Whether it was done shows here")
        page.keyboard.press("Escape")
        expect(page.locator("#away")).to_contain_text("does not answer. Start it with tidemill serve")
        page.evaluate("location.hash = '#/schedule'")
        page.fill("#send-topic", "orders")
        page.get_by_role("button", name="Schedule").click()
        expect(page.locator("main [role=alert]")).to_contain_text("does not answer")
        page.evaluate("location.hash = '#/now'")
        expect(page.locator("main [role=alert]").first).to_contain_text("Start it with tidemill serve")
        served.start()
        expect(page.locator("[data-tile=Pending]")).to_contain_text("1")
        expect(page.locator("#away")).to_be_hidden()
        expect(page.locator("main [role=alert]")).to_have_count(0)
    finally:
        served.stop()


def test_a_fault_is_above_every_page_with_its_reason(odd, visit) -> None:
    visitor = visit(odd.endpoint)
    visitor.forgiven = ["503"]
    page = visitor.show("now")
    reason = "releaser has failed for 14 s: /data/<b>index</b>: Input/output error"
    said = {"status": "failing", "disk": "enough", "reason": reason}
    page.route("**/healthz", lambda route: route.fulfill(status=503, json=said))
    expect(page.locator("#away")).to_have_text(f"The broker is failing: {reason}.")
    page.evaluate("location.hash = '#/topics'")
    expect(page.locator("#away")).to_be_visible()
    said["status"] = "failed"
    expect(page.locator("#away")).to_contain_text("The broker stopped: releaser has failed")
    expect(page.locator("#away")).to_contain_text("What you see is from")
    page.unroute("**/healthz")
    expect(page.locator("#away")).to_be_hidden()
