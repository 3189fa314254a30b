"""After the story: the broker runs on over its data, until Ctrl-C, with some messages to look at.

Owns that last process. By the end of the story every order is settled, so some reminders over the next hour
are sent: charts of a broker without pending messages show little.
"""

from __future__ import annotations

import threading
from pathlib import Path

from rich.console import Console

from tidemill.cli.demo.serving import Serving
from tidemill.client.client import Client
from tidemill.core.model import Draft

REMINDERS = 240
_EVERY_MS = 15_000
_TOPIC = "reminders"


def play_on(directory: Path, log: Path, pipeline: str, screen: Console) -> None:
    """Serve the directory and say what can be done with it; ends with Ctrl-C."""
    screen.print()
    with screen.status("the broker starts again …"):
        serving = Serving(directory, log, pipeline)
    try:
        _put_reminders(serving.endpoint)
        _say_what_to_do(serving.endpoint, screen)
        threading.Event().wait()
    except KeyboardInterrupt:
        screen.print("stopping …", style="dim")
    finally:
        serving.stop()


def _put_reminders(endpoint: str) -> None:
    numbers = range(1, REMINDERS + 1)
    drafts = [
        Draft(_TOPIC, b"reminder %d" % n, delay_ms=n * _EVERY_MS, keys=(f"reminder-{n}",)) for n in numbers
    ]
    with Client(endpoint) as client:
        client.send_many(drafts)


def _say_what_to_do(endpoint: str, screen: Console) -> None:
    screen.print(f"The broker runs on, with {REMINDERS} reminders over the next hour.", style="bold")
    screen.print(f"Its dashboard: http://{endpoint}/", soft_wrap=True)
    screen.print("From another terminal:")
    for command in (
        f"export TIDEMILL_ENDPOINT={endpoint}",
        "tidemill status --watch",
        "tidemill forecast",
        "tidemill send hello world --delay 10s",
        "tidemill receive hello --group me --wait 30s",
        f"tidemill cancel {_TOPIC} --key reminder-{REMINDERS}",
    ):
        screen.print(f"    {command}", style="cyan", highlight=False, soft_wrap=True)
    screen.print("Ctrl-C stops it.")
