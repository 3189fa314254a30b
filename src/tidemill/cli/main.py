"""The command `tidemill`: one application, one file per command, one place where errors become words.

Owns the list of commands and what a failure looks like: one line on stderr that says what to do, exit code 1
(2 for bad usage, 130 when interrupted), never a traceback for something that was raised on purpose.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from tidemill.cli.advance import advance
from tidemill.cli.backup import backup
from tidemill.cli.bench.door import door
from tidemill.cli.bench.engine import engine
from tidemill.cli.bench.pipeline import pipeline
from tidemill.cli.bench.timers import timers
from tidemill.cli.cancel import cancel
from tidemill.cli.check import check
from tidemill.cli.demo.command import demo
from tidemill.cli.dump import dump
from tidemill.cli.forecast import forecast
from tidemill.cli.groups import groups
from tidemill.cli.pending import pending
from tidemill.cli.rebuild import rebuild
from tidemill.cli.receive import receive
from tidemill.cli.reschedule import reschedule
from tidemill.cli.schedule import schedule
from tidemill.cli.send import SendCommand, send
from tidemill.cli.serve import serve
from tidemill.cli.sql import sql
from tidemill.cli.status import status
from tidemill.cli.topics import topics
from tidemill.core.errors import TidemillError

_FAILED = 1
_BAD_USAGE = 2
_INTERRUPTED = 130
# Typer may bring its own copy of click, so the family of usage errors is taken from Typer itself.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="tidemill",
    help="Holds messages until their time, then puts each into its topic: once, never early.",
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench = typer.Typer(help="Measures this machine: figures as a table, or with --json.")
bench.command("engine")(engine)
bench.command("door")(door)
bench.command("pipeline")(pipeline)
bench.command("timers")(timers)
bench.callback()(lambda: None)

app.command("serve")(serve)
app.command("send", cls=SendCommand)(send)
app.command("schedule")(schedule)
app.command("receive")(receive)
app.command("cancel")(cancel)
app.command("reschedule")(reschedule)
app.command("pending")(pending)
app.command("forecast")(forecast)
app.add_typer(topics, name="topics")
app.add_typer(groups, name="groups")
app.command("status")(status)
app.command("sql")(sql)
app.command("advance")(advance)
app.command("backup")(backup)
app.command("check")(check)
app.command("dump")(dump)
app.command("rebuild")(rebuild)
app.command("demo")(demo)
app.add_typer(bench, name="bench")


def main() -> None:
    """Run the command line and exit with its code."""
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code."""
    try:
        code = app(args=list(arguments) or ["--help"], prog_name="tidemill", standalone_mode=False)
    except _UsageError as error:
        return _complain(_usage_text(error), _BAD_USAGE)
    except TidemillError as error:
        return _complain(str(error), _FAILED)
    except BrokenPipeError:  # `tidemill dump FILE | head` has seen enough
        _drop_stdout()
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _complain(f"{where}{error.strerror or error}; check the path and its permissions", _FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", _INTERRUPTED)
    return code if isinstance(code, int) else 0


def _usage_text(error: Exception) -> str:
    format_message = getattr(error, "format_message", lambda: str(error))
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "tidemill"
    return f"{format_message().rstrip('.')}; see `{command} --help`"


def _complain(text: str, code: int) -> int:
    print(f"tidemill: {' '.join(text.split())}", file=sys.stderr)
    return code


def _drop_stdout() -> None:
    """Nobody reads our output any more: let what is buffered go nowhere instead of failing at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
