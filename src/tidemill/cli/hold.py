"""`tidemill hold` and `tidemill resume`: releases, or absorbing, of the whole broker."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from tidemill.cli.connecting import EndpointOption, JsonOption, connect
from tidemill.client.answers import Holds
from tidemill.core.holds import Held, held_named

WhatArgument = Annotated[str, typer.Argument(metavar="WHAT", help="`releases` or `absorbing`.")]
_HELD = {
    Held.RELEASES: "nothing timed is put into its topic",
    Held.ABSORBING: "the timer absorbs nothing new",
}


def hold(what: WhatArgument, endpoint: EndpointOption = None, is_json: JsonOption = False) -> int:
    """Hold the releases of the whole broker, or what its timer takes in; persists over restarts."""
    held = held_named(what)
    with connect(endpoint) as client:
        holds = client.hold(held)
    return _print(holds, f"{held} held: {_HELD[held]} until `tidemill resume {held}`", is_json)


def resume(what: WhatArgument, endpoint: EndpointOption = None, is_json: JsonOption = False) -> int:
    """End a hold; what fell due meanwhile is released at once."""
    held = held_named(what)
    with connect(endpoint) as client:
        holds = client.resume(held)
    return _print(holds, f"{held} resumed", is_json)


def _print(holds: Holds, text: str, is_json: bool) -> int:
    print(json.dumps(asdict(holds)) if is_json else text)
    return 0
