"""`tidemill serve`: open a data directory to the world."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli.output import console
from tidemill.core.config import BrokerSettings, settings_from, settings_from_file
from tidemill.core.errors import RequestError

if TYPE_CHECKING:
    from tidemill.server.serve_plan import ServePlan


def serve(
    data: Annotated[Path, typer.Option(help="Data directory; made if it is not there.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port for gRPC and HTTP; 0 takes a free one.")] = 8081,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow an address others can reach.")] = False,
    auto_create: Annotated[
        bool, typer.Option("--auto-create", help="Make a topic when a gRPC client asks for it.")
    ] = False,
    pipeline: Annotated[str, typer.Option(help="Who turns the wheel: embedded.")] = "embedded",
    lead: Annotated[str | None, typer.Option(help="How far the timer works ahead. [30s]")] = None,
    tick: Annotated[str | None, typer.Option(help="Width of a wheel slot. [1000ms]")] = None,
    shards: Annotated[int | None, typer.Option(help="Shards of the timer. [2]")] = None,
    durability: Annotated[str | None, typer.Option(help="sync or async. [sync]")] = None,
    commits_in_flight: Annotated[int | None, typer.Option(help="Syncs that may overlap. [4]")] = None,
    retention: Annotated[str | None, typer.Option(help="How long messages are kept. [3d]")] = None,
    max_delay: Annotated[str | None, typer.Option(help="The longest delay taken. [3650d]")] = None,
    clock: Annotated[str, typer.Option(help="system or simulated.")] = "system",
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings; flags win.")] = None,
) -> int:
    """Serve a data directory over gRPC and HTTP until stopped."""
    if pipeline != "embedded":
        raise RequestError(f"pipeline {pipeline!r} is not there yet; use --pipeline embedded")
    if clock not in ("system", "simulated"):
        raise RequestError(f"clock {clock!r} is unknown; use system or simulated")
    flags = {
        "lead": lead,
        "tick": tick,
        "shards": shards,
        "durability": durability,
        "commits_in_flight": commits_in_flight,
        "retention": retention,
        "max_delay": max_delay,
    }
    start = settings_from_file(config) if config is not None else BrokerSettings()
    settings = settings_from({k: v for k, v in flags.items() if v is not None}, start)
    # Imported here: the other commands need no server, and start faster without one.
    from tidemill.server.serve_plan import ServePlan
    from tidemill.server.supervisor import check_address

    check_address(host, port, is_insecure=insecure)
    plan = ServePlan(str(data), host, port, auto_create, clock, settings)
    return asyncio.run(_run(plan))


async def _run(plan: ServePlan) -> int:
    from tidemill.server.supervisor import Supervisor

    return await Supervisor(plan, _say).run()


def _say(event: str, facts: dict[str, Any]) -> None:
    """Tell the person at the terminal what happens."""
    match event:
        case "opened":
            text = (
                f"tidemill serves on {facts['host']}:{facts['port']} (gRPC, HTTP); timer pipeline: embedded"
            )
        case "failed":
            text = f"tidemill: {facts['message']}"
        case "restarting":
            text = f"tidemill: the broker was killed by signal {facts['signal']}; starting it again"
        case "closed" if facts["pending"]:
            due_ms = facts["next_due_ms"]
            text = (
                f"tidemill stopped; {facts['pending']} messages are pending, the next is due at {due_ms} ms"
            )
        case "closed":
            text = "tidemill stopped; nothing is pending"
        case _:
            return
    console().print(text, highlight=False, soft_wrap=True)
