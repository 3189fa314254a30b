"""Bars and live pictures on a screen that is none."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.text import Text

from tidemill.cli import output
from tidemill.cli.forecast import drawn
from tidemill.cli.output import bar
from tidemill.cli.serve_story import Story, text_of
from tidemill.cli.watching import watch
from tidemill.core.answers import Minute
from tidemill.core.errors import ForbiddenError, UnreachableError


def _screen(is_terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=120, color_system=None)


def test_a_bar_shows_share_rate_and_time_left() -> None:
    screen = _screen(True)
    with bar("copying", screen=screen) as advance:
        advance(1 << 20, 4 << 20)
        advance(2 << 20, 4 << 20)
    said = screen.file.getvalue()
    assert "copying" in said
    assert "50%" in said
    assert "B/s" in said
    assert "left" in said


def test_a_bar_of_rows_counts_rows_and_can_be_renamed() -> None:
    screen = _screen(True)
    with bar("scheduling", "rows", screen) as advance:
        advance(1, 10)
        advance.say("still at it")
        advance(5, 10)
    assert "rows/s" in screen.file.getvalue()
    assert "still at it" in screen.file.getvalue()


def test_a_bar_that_only_waits_shows_no_rate_of_before() -> None:
    screen = _screen(True)
    with bar("reading", screen=screen) as advance:
        advance(1 << 20, 4 << 20)
        advance(2 << 20, 4 << 20)
        advance.wait("comparing")
    said = screen.file.getvalue().rpartition("comparing")[2]
    assert "B/s" not in said
    assert "left" not in said


def test_there_is_no_bar_in_a_pipe() -> None:
    screen = _screen(False)
    with bar("copying", screen=screen) as advance:
        advance(1, 2)
    assert screen.file.getvalue() == ""


class _Looks:
    """Gives one picture or error after another, and ends the watch with the last."""

    def __init__(self, *seen: str | Exception) -> None:
        self._seen = list(seen)
        self.pause = SimpleNamespace(wait=self._wait)  # no time passes

    def _wait(self, timeout: float | None = None) -> bool:
        return not self._seen

    def __call__(self) -> Text:
        what = self._seen.pop(0)
        if isinstance(what, Exception):
            raise what
        return Text(what)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_broker_that_is_away_is_looked_for_again(is_terminal: bool) -> None:
    screen = _screen(is_terminal)
    looks = _Looks("first", UnreachableError("no broker there"), "second")
    watch(screen, looks, looks.pause)
    said = screen.file.getvalue()
    assert said.index("first") < said.index("no broker there\nRetrying") < said.index("second")


def test_the_first_look_may_fail_and_so_may_what_does_not_pass() -> None:
    looks = _Looks(UnreachableError("nobody"))
    with pytest.raises(UnreachableError):
        watch(_screen(True), looks, looks.pause)
    looks = _Looks("first", ForbiddenError("not you"))
    with pytest.raises(ForbiddenError):
        watch(_screen(True), looks, looks.pause)


def test_ctrl_c_is_how_a_picture_is_left() -> None:
    looks = _Looks("first", "second")
    looks.pause.wait = _interrupt  # type: ignore[method-assign]
    watch(_screen(True), looks, looks.pause)


def _interrupt(timeout: float | None = None) -> bool:
    raise KeyboardInterrupt


def test_a_forecast_is_at_most_a_screenful_and_loses_none() -> None:
    minutes = [Minute(60_000 * n, 1) for n in range(1440)]
    lines = drawn(minutes, 0, 20)
    assert len(lines) == 31
    assert lines[0] == "1,440 fall due; one row is 48m"
    assert "now" in lines[1]
    assert "in 48m" in lines[2]
    assert drawn([*minutes, Minute(60_000 * 1440, 1)], 0, 20)[0] == "1,441 fall due; one row is 48m"


def test_an_empty_forecast_says_what_to_do() -> None:
    (line,) = drawn([Minute(60_000 * n, 0) for n in range(60)], 0, 20)
    assert line == "nothing falls due within 1h; try a longer --horizon"


def test_reading_the_log_is_shown_and_ends_with_the_next_event(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"host": "h", "port": 1, "tls_port": None, "flight_port": 2, "pipeline": "embedded"}
    with Story() as story:
        story.tell("opening", {"done": 1, "total": 2})
        story.tell("opened", facts)
        story.tell("closed", {"pending": 0, "next_due_ms": None, "open_transactions": 0})
        later = {"pending": 1_000, "next_due_ms": 1_800_000_000_000}
        story.tell("closed", {**later, "open_transactions": 1})
        story.tell("failed", {"message": "the path /data/[b] is wrong"})
    said, complaint = capsys.readouterr()
    assert complaint == "tidemill: the path /data/[b] is wrong\n"
    assert "serves on h:1 (gRPC, HTTP) and :2 (Flight)" in said
    assert "dashboard: http://h:1/" in said
    assert "nothing is pending\n" in said
    assert "1,000 messages are pending, the next is due at 2027-01-15T08:00:00.000Z; 1 tr" in said
    assert said.endswith("; 1 transaction is open\n")
    left = {"pending": 0, "next_due_ms": None, "open_transactions": 2}
    assert text_of("closed", left) == "tidemill stopped; nothing is pending; 2 transactions are open"
    assert text_of("unheard of", {}) == ""


@pytest.mark.parametrize(
    ("host", "address"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("box", "box")]
)
def test_the_dashboards_address_can_be_opened_here(host: str, address: str) -> None:
    facts = {"host": host, "port": 1, "tls_port": None, "flight_port": None, "pipeline": "spark"}
    assert f"dashboard: http://{address}:1/" in text_of("opened", facts)


def test_a_count_is_words_on_a_terminal_and_a_number_in_a_pipe(monkeypatch) -> None:
    assert output.counted(1200, "cancelled") == "1200"
    monkeypatch.setattr(output, "console", lambda: Console(force_terminal=True))
    assert output.counted(1, "cancelled") == "1 cancelled"
