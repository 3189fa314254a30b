"""What an operator may hold for the whole broker, by its names; they are a contract (CLI, HTTP, client)."""

from __future__ import annotations

from enum import StrEnum

from tidemill.core.arguments import require_kind
from tidemill.core.errors import RequestError


class Held(StrEnum):
    RELEASES = "releases"  # nothing timed is put into its topic
    ABSORBING = "absorbing"  # the timer takes in no new entries


def held_named(name: str) -> Held:
    """The `Held` of this name; `RequestError` for anything else."""
    require_kind("the name to hold", name, str, "a text")
    try:
        return Held(name)
    except ValueError:
        names = " or ".join(held.value for held in Held)
        raise RequestError(f"{name[:40]!r} cannot be held or resumed; use {names}") from None
