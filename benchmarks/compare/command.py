"""`python -m benchmarks compare`: the same work for Tidemill and common alternatives.

Systems take turns, so that each figure of all of them is of the same minutes. A peer that is not installed is
named with what to do, and left out. Where a peer is better, that is a figure like any other: the exit code
is 0.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.compare.compared import COMPARED, Measured, compared_table
from benchmarks.compare.system import System
from benchmarks.compare.systems import PEERS, TIDEMILL, chosen_peers
from benchmarks.compare.turns import (
    FULL,
    QUICK,
    THREADS,
    Figures,
    Scale,
    measure_at_rest,
    measure_many,
)
from tidemill.cli.bench.measuring import DataOption, JsonOption, QuickOption, work_directory
from tidemill.cli.output import console
from tidemill.cli.planned_bar import PlannedStep, planned_bar
from tidemill.core.durations import as_duration_ms
from tidemill.core.errors import RequestError

_PEER_NAMES = ",".join(peer.name for peer in PEERS)
_POLL_MS_MAX = 60_000
_DISK_BYTES = 1 << 30
_DISK_BYTES_EACH = 1_000  # with write-ahead logs, and files that are there twice while they are rewritten
_START_S = 3.0
_PER_S = 100_000  # in bulk, of the slower ones, roughly

Turn = Callable[[System, Path, float, Scale], Figures]


def compare(
    data: DataOption = None,
    is_json: JsonOption = False,
    quick: QuickOption = False,
    peers: Annotated[str, typer.Option(help="whom to compare with, with commas between")] = _PEER_NAMES,
    poll: Annotated[str, typer.Option(help="how often the peers look for what is due")] = "100ms",
    pending: Annotated[
        int | None, typer.Option(help="how many messages wait in each, 1,000,000 if not given", min=1)
    ] = None,
) -> None:
    """Compare with Redis, PostgreSQL and SQLite, each doing the same work. Some minutes."""
    wanted = chosen_peers(peers)
    poll_ms = as_duration_ms(poll)
    if not 1 <= poll_ms <= _POLL_MS_MAX:
        raise RequestError(f"--poll is {poll}; give 1ms to 60s")
    scale = QUICK if quick else FULL
    if pending is not None:
        scale = dataclasses.replace(scale, pending_count=pending)
    with work_directory(data, _DISK_BYTES + scale.pending_count * _DISK_BYTES_EACH) as directory:
        directory.chmod(0o711)  # PostgreSQL's server may have to run as another user, and passes through
        missing = {peer.name: reason for peer in wanted if (reason := peer.missing(directory))}
        systems = [TIDEMILL, *(peer for peer in wanted if peer.name not in missing)]
        measured = _measure(systems, directory, poll_ms / 1000, scale)
    if is_json:
        print(json.dumps(_flat(systems, measured, missing, poll_ms, scale)))
    else:
        _print_table(systems, measured, missing, poll_ms, scale, is_quick=quick)


def _measure(systems: Sequence[System], directory: Path, poll_s: float, scale: Scale) -> dict[str, Figures]:
    measured: dict[str, Figures] = {system.name: {} for system in systems}
    with planned_bar(_plan(systems, scale)) as next_step:
        for name, turn in _TURNS.items():
            for system in systems:
                place = directory / f"{system.name}-{name.replace(' ', '-')}"
                measured[system.name] |= turn(system, place, poll_s, scale)
                shutil.rmtree(place, ignore_errors=True)
                next_step()
    return measured


_TURNS: dict[str, Turn] = {"at rest": measure_at_rest, "many pending": measure_many}


def _plan(systems: Sequence[System], scale: Scale) -> list[PlannedStep]:
    """The steps, and about how many seconds each takes."""
    rest_s = 2 * _START_S + scale.idle_s + scale.rest_count / 50 + scale.send_s
    many_s = 2 * _START_S + scale.settle_s + (scale.pending_count + 3 * scale.burst_count) / _PER_S
    seconds = {"at rest": rest_s, "many pending": many_s}
    return [PlannedStep(f"{system.title}, {name}", seconds[name]) for name in _TURNS for system in systems]


def _flat(
    systems: Sequence[System], measured: Measured, missing: dict[str, str], poll_ms: int, scale: Scale
) -> dict[str, float | str]:
    """What was asked for, each figure behind its system's name, and what is missing."""
    flat: dict[str, float | str] = {
        "poll_ms": poll_ms,
        "pending": scale.pending_count,
        "burst": scale.burst_count,
    }
    for system in systems:
        found = measured[system.name]
        flat |= {f"{system.name}_{f.name}": round(found[f.name], 3) for f in COMPARED if f.name in found}
    return flat | {f"{name}_missing": reason for name, reason in missing.items()}


def _print_table(
    systems: Sequence[System],
    measured: Measured,
    missing: dict[str, str],
    poll_ms: int,
    scale: Scale,
    *,
    is_quick: bool,
) -> None:
    screen = console()
    title = "the same work, durable, on this machine" + (" (quick: small counts)" if is_quick else "")
    screen.print(compared_table(title, systems, measured))
    screen.print(
        f"{THREADS} threads; {scale.pending_count:,} messages of 100 bytes pending; a burst of "
        f"{scale.burst_count:,}. The peers look for what is due every {poll_ms:,} ms (--poll): more often is "
        "less late and takes more of a core."
    )
    screen.print("The timer's runner is embedded; Spark takes more memory (`tidemill bench pipeline`).")
    for peer in PEERS:
        if peer.name in missing:
            screen.print(f"{peer.title} is not compared: {missing[peer.name]}.")
