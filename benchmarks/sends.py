"""`python -m benchmarks sends`: single sends of the same Python threads into Tidemill, Redis and beanstalkd.

One after another, each alone on the machine and on a server of its own. A peer that is not installed is named
with what to install, and left out.
"""

from __future__ import annotations

import json

from benchmarks.peers import PEERS, peers_here
from tidemill.cli.bench.measuring import DataOption, JsonOption, QuickOption, work_directory
from tidemill.cli.bench.server_client import measure_threads
from tidemill.cli.child_broker import serving
from tidemill.cli.output import console
from tidemill.cli.planned_bar import PlannedStep, planned_bar

OURS = "client_send_per_s"
_THREADS = 32
_FULL_S, _QUICK_S = 8.0, 1.0
_START_S = 3.0


def sends(data: DataOption = None, is_json: JsonOption = False, quick: QuickOption = False) -> None:
    """Compare single sends of 32 threads with Redis and beanstalkd. A minute."""
    seconds = _QUICK_S if quick else _FULL_S
    here = peers_here()
    steps = [PlannedStep("Tidemill", _START_S + seconds)]
    steps += [PlannedStep(peer.name, 2 * (_START_S + seconds)) for peer in here]
    figures: dict[str, float] = {}
    with work_directory(data) as directory, planned_bar(steps) as next_step:
        with serving(directory / "tidemill") as endpoint:
            figures[OURS] = measure_threads(endpoint, _THREADS, seconds)
        next_step()
        for peer in here:
            for name, measure in peer.figures().items():
                figures[name] = measure(directory / name, _THREADS, seconds)
            next_step()
    if is_json:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}))
    else:
        _print(figures)


def _print(figures: dict[str, float]) -> None:
    screen = console()
    screen.print(f"{_THREADS} Python threads send one message at a time each: {figures[OURS]:,.0f} /s.")
    for peer in PEERS:
        if all(name in figures for name in peer.figures()):
            screen.print(peer.sentence(figures, figures[OURS]))
        else:
            screen.print(f"To compare with {peer.name}, install {peer.install}.")
