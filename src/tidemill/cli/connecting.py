"""Commands that talk to a broker: how each finds it, and prints its answer.

The endpoint is the first of: `--endpoint`, `TIDEMILL_ENDPOINT`, `endpoint` in the config file, the default.
The config file is TOML (`TIDEMILL_CONFIG`, else `~/.config/tidemill/config.toml`) with `endpoint`,
`token`, `ca` (a file of certificates to trust) and `tls_insecure` (trust any); in the environment they are
`TIDEMILL_TOKEN`, `TIDEMILL_CA` and `TIDEMILL_TLS_INSECURE=1`.
"""

from __future__ import annotations

import inspect
import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemill.cli.output import Answer
from tidemill.client.arguments import token_of
from tidemill.client.client import Client
from tidemill.client.transport.endpoint import DEFAULT_ENDPOINT
from tidemill.core.errors import RequestError, TidemillError

# Long enough for a broker that is just starting, short enough where none was started.
_RETRY_MS = 1_000
_SETTINGS = {"endpoint", "token", "ca", "tls_insecure"}
_YES = {"1", "true", "yes"}

EndpointOption = Annotated[
    str | None,
    typer.Option("--endpoint", envvar="TIDEMILL_ENDPOINT", help=f"Where the broker is. [{DEFAULT_ENDPOINT}]"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON for programs instead of text for people.")]


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where a command's broker is and how to speak to it."""

    endpoint: str
    token: str
    ca: str
    is_insecure: bool


def broker_of(endpoint: str | None) -> BrokerAddress:
    """The broker that a command means."""
    settings = _config_file()
    token, ca, insecure = (
        os.environ.get(f"TIDEMILL_{name.upper()}", "") or settings.get(name, "")
        for name in ("token", "ca", "tls_insecure")
    )
    chosen = endpoint or settings.get("endpoint") or DEFAULT_ENDPOINT
    return BrokerAddress(chosen, token_of(token), os.path.expanduser(ca), insecure.lower() in _YES)


def connect(endpoint: str | None) -> Client:
    """A client for one command."""
    broker = broker_of(endpoint)
    return Client(
        broker.endpoint,
        token=broker.token,
        ca=broker.ca,
        insecure=broker.is_insecure,
        retry_for=_RETRY_MS / 1_000,
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


def clock_of(client: Client) -> int | None:
    """The broker's clock, to print how far off a time is; None if it cannot be read.

    It is read when the work is done. That this fails (the caller may not read it, the broker has just gone)
    must not make the command fail.
    """
    try:
        return client.status().now_ms
    except TidemillError:
        return None


def client_command(command: Callable[..., Answer | int]) -> Callable[..., int]:
    """Make a command of a function that uses a broker.

    The function takes a `client` first; in its place the command has the options `--endpoint` and `--json`.
    The command prints the answer. A function that prints by itself takes `is_json` as well and returns the
    exit code.
    """
    parameters = inspect.signature(command, eval_str=True).parameters
    shown = [parameter for name, parameter in parameters.items() if name not in ("client", "is_json")]
    option = inspect.Parameter.KEYWORD_ONLY
    shown += [
        inspect.Parameter("endpoint", option, default=None, annotation=EndpointOption),
        inspect.Parameter("is_json", option, default=False, annotation=JsonOption),
    ]

    @wraps(command)
    def run(*, endpoint: str | None, is_json: bool, **given: Any) -> int:
        if "is_json" in parameters:
            given["is_json"] = is_json
        with connect(endpoint) as client:
            answer = command(client, **given)
            return answer if isinstance(answer, int) else answer.print(is_json)

    ordered = [parameter.replace(kind=option) for parameter in shown]
    run.__signature__ = inspect.Signature(ordered, return_annotation=int)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
    return run
