"""`tidemill bench`: the group of commands that measure this machine."""

from __future__ import annotations

import typer

from tidemill.cli.bench.engine import engine
from tidemill.cli.bench.levels import levels
from tidemill.cli.bench.pipeline import pipeline
from tidemill.cli.bench.server import server
from tidemill.cli.child_processes import end_in_order

bench = typer.Typer(help="Measure this machine: figures as a table, or with --json.")
bench.command("engine")(engine)
bench.command("server")(server)
bench.command("pipeline")(pipeline)
bench.command("levels")(levels)
bench.callback()(end_in_order)
