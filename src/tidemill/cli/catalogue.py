"""The list of commands with their line in the help.

A command is loaded from the module of its name when it is run: the broker and its libraries take half a
second to load, and most commands do not need them.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import Annotated, Any

import typer

_ABOUT = "Holds messages until their time, then puts each into its topic: once, never early."

CATALOGUE = {
    "serve": "Serve a data directory over gRPC and HTTP until stopped.",
    "send": "Send one message; durable when this returns.",
    "schedule": "Send every row of a file: columns `body`, `delay_ms` or `deliver_at`, `key` and others.",
    "receive": "Receive messages, one JSON object per line.",
    "cancel": "Cancel pending messages; exit 0 only if something was cancelled.",
    "reschedule": "Move pending messages to another time; exit 0 only if something was moved.",
    "pending": "Show pending messages, earliest due first; with --json one object per line.",
    "forecast": "Show how many messages fall due when: one row per minute, or per several minutes.",
    "topics": "Topics: list, create, delete, pause, resume, limit.",
    "hold": "Hold the releases of the whole broker, or what its timer takes in; persists over restarts.",
    "resume": "End a hold; what fell due meanwhile is released at once.",
    "groups": "Consumer groups: list with lag, set, reset.",
    "dead-letters": "Dead letters: list, resend. Short: dlq.",
    "status": "Show counts, lateness, timer and disk.",
    "sql": "Run SQL over the tables pending, history and messages with Spark.",
    "advance": "Move a simulated clock; returns when everything due by then is in its topic.",
    "backup": "Copy a live broker into a new directory; `tidemill serve --data DIR` opens the copy.",
    "check": "Check every invariant of a data directory; exit 1 on any finding.",
    "dump": "Print any file of a data directory in readable form. Opens it read-only and takes no lock.",
    "rebuild": "Derive every other file again from the commit log, then check.",
    "damaged": "List messages whose bytes in the log are damaged; exit 1 if there are any.",
    "salvage": "Copy what can be read of a damaged data directory into a new one; exit 1 if data is missing.",
    "mqadmin": "RocketMQ's mqadmin, the most used commands: create topics and groups, show progress.",
    "demo": "Run the order-payment-timeout demo against a real broker; exit 0 only if every check held.",
    "bench": "Measure this machine: figures as a table, or with --json.",
}
_ALIASES = {"dlq": "dead-letters"}
# Where the module is not `tidemill.cli.NAME`. The function or group in it is always called NAME.
_MODULES = {"resume": "hold", "demo": "demo.command", "bench": "bench.command"}


def application(wanted: str | None) -> typer.Typer:
    """The command line with the wanted command loaded, the others by their names; None: with all loaded."""
    app = typer.Typer(
        name="tidemill",
        help=_ABOUT,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=_ABOUT)(_options)
    for name, line in CATALOGUE.items():
        if wanted in (None, name):
            _add(app, name, name)
        else:
            app.command(name, help=line)(_not_loaded)
    if wanted in _ALIASES:
        _add(app, wanted, _ALIASES[wanted], hidden=True)
    return app


def loaded(name: str) -> Any:
    """The function, or the group of commands, of this name."""
    return getattr(_module(name), name.replace("-", "_"))


def _module(name: str) -> ModuleType:
    return import_module(f"tidemill.cli.{_MODULES.get(name, name.replace('-', '_'))}")


def _add(app: typer.Typer, shown: str, name: str, *, hidden: bool = False) -> None:
    command = loaded(name)
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=shown, hidden=hidden)
    else:
        # A command that parses its arguments in its own way has a class for that.
        app.command(shown, cls=getattr(_module(name), "COMMAND_CLASS", None), hidden=hidden)(command)


def _say_version(is_asked: bool) -> None:
    if is_asked:
        print(f"tidemill {version('tidemill')}")
        raise typer.Exit


def _options(
    is_version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None: ...


def _not_loaded() -> None:
    raise AssertionError("only the wanted command is loaded")
