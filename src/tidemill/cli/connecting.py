"""How a client command finds its broker, and the options shared by all of them.

The endpoint is the first of: `--endpoint`, `TIDEMILL_ENDPOINT`, `endpoint` in the config file, the default.
The config file is TOML (`TIDEMILL_CONFIG`, else `~/.config/tidemill/config.toml`) with `endpoint`,
`token`, `ca` (a file of certificates to trust) and `tls_insecure` (trust any); in the environment they are
`TIDEMILL_TOKEN`, `TIDEMILL_CA` and `TIDEMILL_TLS_INSECURE=1`.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemill.client.arguments import token_of
from tidemill.client.client import Client
from tidemill.client.transport.endpoint import DEFAULT_ENDPOINT
from tidemill.core.durations import parse_duration_ms, parse_time_ms
from tidemill.core.errors import RequestError, TidemillError

# Long enough for a broker that is just starting, short enough for somebody who forgot to start one.
_RETRY_MS = 1_000
_SETTINGS = {"endpoint", "token", "ca", "tls_insecure"}
_YES = {"1", "true", "yes"}

EndpointOption = Annotated[
    str | None,
    typer.Option("--endpoint", envvar="TIDEMILL_ENDPOINT", help=f"Where the broker is. [{DEFAULT_ENDPOINT}]"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON for programs instead of text for people.")]
FromOption = Annotated[
    str | None, typer.Option("--from", help="Due at or after: ISO 8601, +30m, now, or Unix ms.")
]
ToOption = Annotated[str | None, typer.Option("--to", help="Due before.")]
RequestIdOption = Annotated[
    str | None,
    typer.Option(
        "--request-id",
        help="Repeated within an hour with the same id and arguments, the request returns the first answer.",
    ),
]
KeyOption = Annotated[str | None, typer.Option("--key", help="All messages with this key.")]


@dataclass(frozen=True, slots=True)
class Broker:
    """Where a command's broker is and how to speak to it."""

    endpoint: str
    token: str
    ca: str
    is_insecure: bool


def broker_of(endpoint: str | None) -> Broker:
    """The broker that a command means."""
    settings = _config_file()
    token, ca, insecure = (
        os.environ.get(f"TIDEMILL_{name.upper()}", "") or settings.get(name, "")
        for name in ("token", "ca", "tls_insecure")
    )
    chosen = endpoint or settings.get("endpoint") or DEFAULT_ENDPOINT
    return Broker(chosen, token_of(token), os.path.expanduser(ca), insecure.lower() in _YES)


def connect(endpoint: str | None) -> Client:
    """A client for one command."""
    broker = broker_of(endpoint)
    return Client(
        broker.endpoint,
        token=broker.token,
        ca=broker.ca,
        insecure=broker.is_insecure,
        retry_for=_RETRY_MS,
        linger=0,
    )


def _config_file() -> dict[str, str]:
    named = os.environ.get("TIDEMILL_CONFIG")
    path = Path(named) if named else Path.home() / ".config" / "tidemill" / "config.toml"
    if not path.is_file():
        if named:
            raise RequestError(f"TIDEMILL_CONFIG names {path}, which is not a file")
        return {}
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RequestError(
            f"{path} is not TOML: {error}; fix it, or name another with TIDEMILL_CONFIG"
        ) from error
    if unknown := set(content) - _SETTINGS:
        raise RequestError(f"{path}: unknown settings {sorted(unknown)}; known are {sorted(_SETTINGS)}")
    for name, value in content.items():
        if not isinstance(value, str | bool if name == "tls_insecure" else str):
            raise RequestError(f"{path}: {name} is {value!r}, which is no text; write it in quotes")
    return {name: str(value) for name, value in content.items()}


def usage(text: str) -> typer.BadParameter:
    """A complaint about the command line itself (exit 2)."""
    return typer.BadParameter(text)


def duration_ms(text: str) -> int:
    """A duration from the command line."""
    try:
        return parse_duration_ms(text)
    except RequestError as error:
        raise usage(str(error)) from error


def moment_ms(client: Client, text: str) -> int:
    """A moment from the command line; relative ones count on the broker's clock."""
    now_ms = client.status().now_ms if _is_relative(text) else 0
    return _time_ms(text, now_ms)


def due_of(delay: str | None, at: str | None) -> tuple[int | None, int | None]:
    """`--delay` and `--at` as a delay and a moment. `+30m` is a delay: the broker counts it on its own clock.

    So who may send or reschedule needs no leave to look.
    """
    if at is None:
        return None if delay is None else duration_ms(delay), None
    return (_time_ms(at, 0), None) if _is_relative(at) else (None, _time_ms(at, 0))


def clock_for_people_ms(client: Client) -> int | None:
    """The broker's clock, to say how far off a time is; None where it cannot be had.

    Asked when the work is done: that this fails (the caller may not look, the broker has just gone) must not
    make the command fail.
    """
    try:
        return client.status().now_ms
    except TidemillError:
        return None


def _is_relative(text: str) -> bool:
    return text.strip().startswith("+") or text.strip().lower() == "now"


def _time_ms(text: str, now_ms: int) -> int:
    try:
        return parse_time_ms(text, now_ms)
    except RequestError as error:
        raise usage(str(error)) from error


def range_ms(client: Client, start: str | None, end: str | None) -> tuple[int | None, int | None]:
    """Both ends of a range of due times, as far as they are given."""
    return (
        None if start is None else moment_ms(client, start),
        None if end is None else moment_ms(client, end),
    )
