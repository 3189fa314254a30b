"""`python -m benchmarks`: the commands, with the errors and exit codes of `tidemill`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from benchmarks.compare.command import compare
from benchmarks.downtime import downtime
from benchmarks.fault_command import faults
from benchmarks.sends import sends
from benchmarks.timers import timers
from tidemill.cli import main
from tidemill.cli.child_processes import end_in_order

_APP = typer.Typer(
    help="Compares Tidemill with others, and hurts it under load: figures as a table, or with --json.",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_APP.command("compare")(compare)
_APP.command("sends")(sends)
_APP.command("timers")(timers)
_APP.command("faults")(faults)
_APP.command("downtime")(downtime)
_APP.callback()(end_in_order)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code."""
    return main.run(arguments, _APP, "python -m benchmarks")


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
