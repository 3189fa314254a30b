"""`tidemill hold` and `tidemill resume`: releases, or absorbing, of the whole broker."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tidemill.cli.connecting import client_command
from tidemill.cli.output import Answer
from tidemill.client.client import Client
from tidemill.core.holds import Held, held_named

WhatArgument = Annotated[str, typer.Argument(metavar="WHAT", help="`releases` or `absorbing`.")]
_HELD = {
    Held.RELEASES: "nothing timed is put into its topic",
    Held.ABSORBING: "the timer absorbs nothing new",
}


@client_command
def hold(client: Client, what: WhatArgument) -> Answer:
    """Hold the releases of the whole broker, or what its timer takes in; persists over restarts."""
    held = held_named(what)
    return Answer(
        asdict(client.admin.hold(held)), f"{held} held: {_HELD[held]} until `tidemill resume {held}`"
    )


@client_command
def resume(client: Client, what: WhatArgument) -> Answer:
    """End a hold; what fell due meanwhile is released at once."""
    held = held_named(what)
    return Answer(asdict(client.admin.resume(held)), f"{held} resumed")
