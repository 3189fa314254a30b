"""The options of the data sources: address and credentials of the broker, and those of each source.

Owns their names, defaults and checks. Options that are not set come from the environment:
`TIDEMILL_ENDPOINT`, `TIDEMILL_TOKEN`, `TIDEMILL_CA`, `TIDEMILL_TLS_INSECURE`, as for the command line. It is
that of the program which uses the tables (`own_environment`): Spark's other processes have the environment of
the moment at which Java was started, whatever was set since.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.client.client import Client
from tidemill.client.transport.endpoint import DEFAULT_ENDPOINT, Endpoint
from tidemill.core.durations import parse_duration_ms
from tidemill.core.errors import RequestError

_PLACE_OPTIONS = ("endpoint", "token", "ca", "insecure", "retryFor")
_OF_SPARK = {"checkpointlocation"}  # options for Spark itself that come along
_RETRY_MS = 30_000
# Planning is done while a user waits for an answer; tasks may sit out a broker's restart.
_PLANNING_RETRY_MS = 3_000
_VARIABLES = ("TIDEMILL_ENDPOINT", "TIDEMILL_TOKEN", "TIDEMILL_CA", "TIDEMILL_TLS_INSECURE")
_YES, _NO = {"1", "true", "yes"}, {"", "0", "false", "no"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the broker is. Picklable: it travels to the tasks."""

    endpoint: str
    token: str = ""
    ca: str = ""
    is_insecure: bool = False
    retry_ms: int = _RETRY_MS

    def connect(self, *, is_planning: bool = False) -> Client:
        retry_ms = min(self.retry_ms, _PLANNING_RETRY_MS) if is_planning else self.retry_ms
        return Client(
            self.endpoint, token=self.token, ca=self.ca, insecure=self.is_insecure, retry_for=retry_ms / 1_000
        )


def own_environment() -> dict[str, str]:
    """The broker's settings in the environment of this process."""
    return {name: os.environ[name] for name in _VARIABLES if name in os.environ}


class Options:
    """The options of one use of a source. Names are taken in any case, as Spark does.

    `environment` is that of the program that uses the source; without it, that of this process.
    """

    def __init__(
        self,
        given: Mapping[str, str],
        source: str,
        names: tuple[str, ...],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._environment = own_environment() if environment is None else environment
        self._given = {name.lower(): value for name, value in given.items()}
        known = (*_PLACE_OPTIONS, *names)
        if unknown := sorted(set(self._given) - {name.lower() for name in known} - _OF_SPARK):
            raise RequestError(f"unknown options {unknown} of {source}; known are {', '.join(known)}")

    def place(self) -> Place:
        def said(variable: str) -> str:
            return self._environment.get(variable, "").strip()

        retry_ms = parse_duration_ms(self.text("retryFor")) if self.text("retryFor") else _RETRY_MS
        endpoint = self.text("endpoint") or said("TIDEMILL_ENDPOINT") or DEFAULT_ENDPOINT
        Endpoint.parse(endpoint)
        is_insecure = self.is_on("insecure", said("TIDEMILL_TLS_INSECURE").lower() in _YES)
        return Place(
            endpoint,
            self.text("token") or said("TIDEMILL_TOKEN"),
            self.text("ca") or said("TIDEMILL_CA"),
            is_insecure,
            retry_ms,
        )

    def text(self, name: str, default: str = "") -> str:
        return self._given.get(name.lower(), default).strip()

    def is_on(self, name: str, default: bool) -> bool:
        value = self._given.get(name.lower())
        if value is None:
            return default
        if value.strip().lower() not in _YES | _NO:
            raise RequestError(f"option {name} is true or false, not {value!r}")
        return value.strip().lower() in _YES

    def number(self, name: str, default: int, most: int) -> int:
        text = self.text(name)
        if not text:
            return default
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise RequestError(f"option {name} is a whole number from 1 to {most}, not {text!r}")
        return int(text)

    def span_ms(self, name: str) -> int:
        """A duration in milliseconds; 0 where none is given."""
        try:
            return parse_duration_ms(self.text(name)) if self.text(name) else 0
        except RequestError as error:
            raise RequestError(f"option {name}: {error}") from None

    def words(self, name: str) -> list[str]:
        """A list written with commas."""
        return [word.strip() for word in self.text(name).split(",") if word.strip()]

    def _json(self, name: str) -> Any:
        try:
            return json.loads(self.text(name))
        except ValueError:
            return None

    def conditions(self, name: str) -> list[Any]:
        """Conditions on columns as JSON; the broker validates them."""
        found = self._json(name)
        if not isinstance(found, list):
            raise RequestError(
                f'option {name} is JSON with a list of conditions, like [["lateness_ms", ">", 50]], '
                f"not {self.text(name)!r}"
            )
        return found

    def offsets(self, name: str) -> dict[str, int]:
        """Offsets by queue, written as JSON: `{"0": 1200, "1": 950}`."""
        found = self._json(name)
        is_right = isinstance(found, dict) and all(
            queue.isdecimal() and type(at) is int and at >= 0 for queue, at in found.items()
        )
        if not is_right:
            raise RequestError(
                f'option {name} is JSON with an offset for each queue, like {{"0": 1200, "1": 950}}, '
                f"not {self.text(name)!r}"
            )
        return dict(found)
