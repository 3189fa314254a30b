"""`tidemill demo`: runs the order-payment-timeout story against a real broker and reports whether all held.

Owns the run: a temporary directory, the stage, the screen, the verdict, and the exit code. With `--keep` in a
terminal the broker runs on afterwards, with some reminders to look at: by the end of the story every order is
settled, and charts of a broker without pending messages show little.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tidemill.cli.arguments import usage
from tidemill.cli.charts import lateness_lines
from tidemill.cli.child_processes import end_in_order
from tidemill.cli.data_directory import open_quietly, shape_of
from tidemill.cli.demo.screen import LiveScreen, plain_event
from tidemill.cli.demo.stage import Stage, broker_of
from tidemill.cli.demo.story import LEAD_MS, ORDER_COUNT, script
from tidemill.cli.demo.verdict import Verdict, by_path, judge, percentile
from tidemill.cli.output import console
from tidemill.client.client import Client
from tidemill.core.clock import SystemClock
from tidemill.core.errors import StorageError, UnreachableError
from tidemill.core.model import Draft
from tidemill.server.process.pipeline_command import why_not_spark

_FRAMES_PER_SECOND = 12
_LOOK_EVERY_MS = 50
_PATIENCE_MS = 20_000  # how long after the script's end the last order may take
REMINDERS = 240
_REMIND_EVERY_MS = 15_000
_REMINDERS_TOPIC = "reminders"


def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the data directory, and the broker running.")
    ] = False,
    pipeline: Annotated[str, typer.Option(help="What runs the timer: spark or embedded.")] = "spark",
) -> int:
    """Run the order-payment-timeout demo against a real broker; exit 0 only if every check held."""
    if pipeline not in ("spark", "embedded"):
        raise usage(f"--pipeline {pipeline!r} is unknown; use spark or embedded")
    end_in_order()
    scratch = Path(tempfile.mkdtemp(prefix="tidemill-demo-"))
    directory = scratch / "data"
    screen = console()
    if pipeline == "spark" and (problem := why_not_spark("")):
        screen.print(f"Without Spark: {problem}. The broker runs the timer itself.\n", soft_wrap=True)
        pipeline = "embedded"
    try:
        verdict = _show(directory, pipeline, screen)
    finally:
        if not keep:
            shutil.rmtree(scratch, ignore_errors=True)
    _print_verdict(verdict, screen)
    if keep:
        screen.print(f"The data directory is {directory}", soft_wrap=True)
        screen.print(f"Look at it with: tidemill check {directory}", soft_wrap=True)
        if screen.is_terminal:
            _run_on(directory, pipeline, screen)
        else:
            screen.print(f"Serve it with: tidemill serve --data {directory}", soft_wrap=True)
    return 0 if verdict.holds else 1


def _show(directory: Path, pipeline: str, screen: Console) -> Verdict:
    is_on_spark = pipeline == "spark"
    who = "Spark, which is killed in the middle, and then the broker itself" if is_on_spark else "the broker"
    also = "is then killed too" if is_on_spark else "is killed in the middle"
    screen.print(
        f"A shop places {ORDER_COUNT} orders and gives each some seconds to be paid. Tidemill holds one "
        "delayed message per order; a payment cancels it, and when its time comes the order is closed. "
        f"Whatever is due later than {LEAD_MS / 1000:.0f} s goes through the timer wheel, run by {who}. "
        f"The shop is a client, the broker a `tidemill serve`, which {also}.\n"
    )
    stage = Stage(directory, SystemClock(), pipeline)
    screen.print(f"Watch it in a browser: http://{stage.endpoint}/\n", soft_wrap=True)
    try:
        _begin(stage, screen)
        if screen.is_terminal:
            with Live(LiveScreen(stage, screen), console=screen, refresh_per_second=_FRAMES_PER_SECOND):
                _play(stage, None)
        else:
            _play(stage, screen)
    except UnreachableError as lost:
        raise StorageError(f"{lost}. Its last output: {stage.broker.last_line()}") from lost
    finally:
        stage.close()
    _print_paths(stage, screen)
    with open_quietly(directory, shape_of(directory)) as broker:
        return judge(stage, broker)


def _begin(stage: Stage, screen: Console) -> None:
    wait = "Spark starts, which takes some 15 seconds …"
    if stage.is_on_spark and not screen.is_terminal:
        screen.print(wait)
    with screen.status(wait) if stage.is_on_spark else nullcontext():
        stage.begin()


def _print_paths(stage: Stage, screen: Console) -> None:
    """Which way the messages came, and how late."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("came")
    for name in ("messages", "p50 late", "p99 late", "max late"):
        table.add_column(name, justify="right")
    for name, late in by_path(stage):
        figures = [f"{percentile(late, percent)} ms" for percent in (50, 99, 100)] if late else ["", "", ""]
        table.add_row(name, str(len(late)), *figures)
    screen.print()
    screen.print(table)
    late = [late_ms for _, part in by_path(stage) for late_ms in part]
    screen.print()
    if late:
        screen.print("how late they came", style="bold")
    for line in lateness_lines(late):
        screen.print(line, markup=False, highlight=False)


def _play(stage: Stage, lines: Console | None) -> None:
    """Run through the script, then wait until every order is settled; prints events as `lines` if given."""
    printed = 0
    scenes = script(with_spark=stage.spark_start_ms is not None)
    until_ms = scenes[-1].after_ms + _PATIENCE_MS
    while scenes or (not stage.is_over and stage.since_begin_ms() < until_ms):
        while scenes and scenes[0].after_ms <= stage.since_begin_ms():
            stage.play(scenes.pop(0))
        if lines is not None:
            events = list(stage.events)
            for event in events[printed:]:
                lines.print(plain_event(*event), markup=False, highlight=False)
            printed = len(events)
        next_ms = stage.since_begin_ms() + _LOOK_EVERY_MS
        if scenes:
            next_ms = min(next_ms, scenes[0].after_ms)
        stage.wait_until(next_ms)


def _print_verdict(verdict: Verdict, screen: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
    for claim in verdict.claims:
        mark = Text("held", "bold green") if claim.holds else Text("BROKEN", "bold red")
        table.add_row(mark, claim.text, Text(claim.seen, "dim"))
    screen.print()
    screen.print(table)
    screen.print()
    screen.print(verdict.summary)
    screen.print(
        Text("Everything held.", "bold green") if verdict.holds else Text("Not everything held.", "bold red")
    )


def _run_on(directory: Path, pipeline: str, screen: Console) -> None:
    """Serve the directory again, print what can be done with it, and wait for Ctrl-C."""
    screen.print()
    with screen.status("the broker starts again …"):
        broker = broker_of(directory, pipeline)
    try:
        numbers = range(1, REMINDERS + 1)
        with Client(broker.endpoint) as client:
            client.send_many(
                [
                    Draft(
                        _REMINDERS_TOPIC,
                        b"reminder %d" % number,
                        delay_ms=number * _REMIND_EVERY_MS,
                        keys=(f"reminder-{number}",),
                    )
                    for number in numbers
                ]
            )
        _print_what_to_do(broker.endpoint, screen)
        threading.Event().wait()
    except KeyboardInterrupt:
        screen.print("stopping …", style="dim")
    finally:
        broker.stop()


def _print_what_to_do(endpoint: str, screen: Console) -> None:
    screen.print(f"The broker runs on, with {REMINDERS} reminders over the next hour.", style="bold")
    screen.print(f"Its dashboard: http://{endpoint}/", soft_wrap=True)
    screen.print("From another terminal:")
    for command in (
        f"export TIDEMILL_ENDPOINT={endpoint}",
        "tidemill status --watch",
        "tidemill forecast",
        "tidemill send hello world --delay 10s",
        "tidemill receive hello --group me --wait 30s",
        f"tidemill cancel {_REMINDERS_TOPIC} --key reminder-{REMINDERS}",
    ):
        screen.print(f"    {command}", style="cyan", highlight=False, soft_wrap=True)
    screen.print("Ctrl-C stops it.")
