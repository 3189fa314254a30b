"""Prints the events of a served broker to the terminal.

Owns the progress bar while the log is read, which may take long after a crash: it begins with the first event
of it and ends with the next other event.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any

from rich.console import Console

from tidemill.cli.output import Advance, bar, console
from tidemill.core.addresses import local_address
from tidemill.core.durations import format_duration, format_time

_COMPLAINTS = ("failed", "restarting", "away")


class Story:
    """Prints the supervisor's events. Use as a context manager."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._advance: Advance | None = None

    def tell(self, event: str, facts: dict[str, Any]) -> None:
        if event == "opening":
            if self._advance is None:
                self._advance = self._stack.enter_context(bar("reading the log"))
            self._advance(facts["done"], facts["total"])
            return
        self._end_bar()
        if text := text_of(event, facts):
            # One line on stderr, like the errors of every command.
            screen = Console(stderr=True) if event in _COMPLAINTS else console()
            screen.print(text, markup=False, highlight=False, soft_wrap=True)

    def _end_bar(self) -> None:
        self._stack.close()
        self._advance = None

    def __enter__(self) -> Story:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_bar()


def text_of(event: str, facts: dict[str, Any]) -> str:
    """The text of an event; empty for one that is not printed."""
    match event:
        case "opened":
            tls = f" and :{facts['tls_port']} (TLS)" if facts["tls_port"] else ""
            flight = f" and :{facts['flight_port']} (Flight)" if facts["flight_port"] else ""
            return (
                f"tidemill serves on {facts['host']}:{facts['port']} (gRPC, HTTP){tls}{flight}; "
                f"timer pipeline: {facts['pipeline']}; dashboard: http://{_for_people(facts['host'])}:{facts['port']}/"
            )
        case "failed":
            return f"tidemill: {facts['message']}"
        case "away":
            return f"tidemill: {facts['message']}; waiting for it"
        case "restarting" if facts["fault"]:
            pause = format_duration(round(facts["pause_s"] * 1000))
            return f"tidemill: the broker stopped: {facts['fault']}; starting it again in {pause}"
        case "restarting" if facts["was_slow"]:
            return "tidemill: the broker took too long to start, is the machine busy? Starting it again"
        case "restarting":
            return f"tidemill: the broker was killed by signal {facts['signal']}; starting it again"
        case "closed":
            left = _left(facts["pending"], facts["next_due_ms"], facts["open_transactions"])
            return f"tidemill stopped; {left}"
    return ""


def _left(pending: int, next_due_ms: int | None, open_transactions: int) -> str:
    """What is pending at the end."""
    words = "nothing is pending"
    if pending and next_due_ms is not None:
        due = f"due at {format_time(next_due_ms)}"
        words = f"{pending:,} messages are pending, the next is {due}"
        if pending == 1:
            words = f"1 message is pending, {due}"
    if open_transactions:
        count = "1 transaction is" if open_transactions == 1 else f"{open_transactions:,} transactions are"
        words += f"; {count} open"
    return words


def _for_people(host: str) -> str:
    """The host of an address that a browser on this machine can open."""
    address = local_address(host)
    return f"[{address}]" if ":" in address else address
