"""The list of commands: each one's name, module, and line in the help.

Owns the list, so that a command line loads only the command it names: the broker and its libraries take half
a second to load, and most commands only talk to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer


@dataclass(frozen=True, slots=True)
class Entry:
    """One command, not loaded yet. `place` is `module:name`, of a function or of a group of commands."""

    name: str
    place: str
    help: str
    command_class: str = ""  # where a command parses its arguments in its own way

    def load(self) -> Any:
        return _named(self.place)


CATALOGUE = (
    Entry("serve", "tidemill.cli.serve:serve", "Serve a data directory over gRPC and HTTP until stopped."),
    Entry(
        "send",
        "tidemill.cli.send:send",
        "Send one message; durable when this returns.",
        "tidemill.cli.send:SendCommand",
    ),
    Entry(
        "schedule",
        "tidemill.cli.schedule:schedule",
        "Send every row of a file: a column `body`, and `delay_ms` or `deliver_at`, `key` and others.",
    ),
    Entry("receive", "tidemill.cli.receive:receive", "Receive messages, one JSON object per line."),
    Entry(
        "cancel",
        "tidemill.cli.cancel:cancel",
        "Cancel pending messages; reports the definite outcome of each.",
    ),
    Entry(
        "reschedule",
        "tidemill.cli.reschedule:reschedule",
        "Move pending messages to another time; exit 0 only if something was moved.",
    ),
    Entry(
        "pending", "tidemill.cli.pending:pending", "Show messages that wait; with --json one object per line."
    ),
    Entry(
        "forecast",
        "tidemill.cli.forecast:forecast",
        "Show how many messages fall due when: a row is one or more minutes, so that all fit a screen.",
    ),
    Entry("topics", "tidemill.cli.topics:topics", "Topics: list, create, delete, pause, resume, limit."),
    Entry(
        "hold",
        "tidemill.cli.hold:hold",
        "Hold the releases of the whole broker, or what its timer takes in; persists over restarts.",
    ),
    Entry("resume", "tidemill.cli.hold:resume", "End a hold; what fell due meanwhile is released at once."),
    Entry("groups", "tidemill.cli.groups:groups", "Consumer groups: list with lag, set, reset."),
    Entry("dlq", "tidemill.cli.dlq:dlq", "Dead letters: list, resend."),
    Entry("status", "tidemill.cli.status:status", "Show counts, lateness, timer and disk."),
    Entry(
        "sql",
        "tidemill.cli.sql:sql",
        "Run SQL over the tables pending, history and messages with Spark.",
    ),
    Entry(
        "advance",
        "tidemill.cli.advance:advance",
        "Move a simulated clock; returns when everything due by then is in its topic.",
    ),
    Entry(
        "backup",
        "tidemill.cli.backup:backup",
        "Copy a live broker into a new directory; `tidemill serve --data DIR` opens the copy.",
    ),
    Entry(
        "check",
        "tidemill.cli.check:check",
        "Check every invariant of a data directory; exit 1 on any finding.",
    ),
    Entry(
        "dump",
        "tidemill.cli.dump:dump",
        "Print any file of a data directory in readable form. Opens it read-only and takes no lock.",
    ),
    Entry(
        "rebuild",
        "tidemill.cli.rebuild:rebuild",
        "Derive every other file again from the commit log, then check.",
    ),
    Entry(
        "damaged",
        "tidemill.cli.damaged:damaged",
        "List messages whose bytes in the log are damaged; exit 1 if there are any.",
    ),
    Entry(
        "salvage",
        "tidemill.cli.salvage:salvage_command",
        "Copy what can be read of a damaged data directory into a new one; exit 1 if something is missing.",
    ),
    Entry(
        "demo",
        "tidemill.cli.demo.command:demo",
        "Play the order-payment-timeout story, live; exit 0 only if everything held.",
    ),
    Entry(
        "bench",
        "tidemill.cli.bench.command:bench",
        "Measures this machine: figures as a table, or with --json.",
    ),
)


def application(wanted: str | None) -> typer.Typer:
    """The command line with the wanted command loaded, the others by their names; None: with all loaded."""
    app = typer.Typer(
        name="tidemill",
        help="Holds messages until their time, then puts each into its topic: once, never early.",
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for entry in CATALOGUE:
        if wanted not in (None, entry.name):
            app.command(entry.name, help=entry.help)(_not_loaded)
            continue
        loaded = entry.load()
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=entry.name)
        else:
            options = {"cls": _named(entry.command_class)} if entry.command_class else {}
            app.command(entry.name, **options)(loaded)
    return app


def _say_version(is_asked: bool) -> None:
    if is_asked:
        print(f"tidemill {version('tidemill')}")
        raise typer.Exit


def _options(
    is_version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Holds messages until their time, then puts each into its topic: once, never early."""


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _not_loaded() -> None:
    raise AssertionError("a command that was not asked for")
