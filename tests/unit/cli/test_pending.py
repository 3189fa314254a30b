"""What `tidemill pending` says of a message's due time."""

from __future__ import annotations

from tidemill.cli.pending import _due
from tidemill.cli.status_picture import _WAITS_FOR, WAITS_SHORT
from tidemill.core.answers import PendingMessage
from tidemill.core.model import Handle
from tidemill.release.backlogs import WaitReason


def _message(waits_for: str | None) -> PendingMessage:
    handle = Handle("b", "t", "id", 1)
    return PendingMessage(1, "t", "id", (), "", 0, 60_000, 10, handle, waits_for=waits_for)


def test_a_due_message_that_waits_says_what_for() -> None:
    assert _due(_message("pause"), 90_000) == "[yellow]overdue: topic paused[/]"
    assert _due(_message("a newer reason"), None) == "[yellow]overdue: a newer reason[/]"
    assert _due(_message(None), 90_000) == "30s ago"
    assert _due(_message(None), None) == ""


def test_every_reason_has_its_words() -> None:
    assert WAITS_SHORT.keys() == _WAITS_FOR.keys() == set(WaitReason)
