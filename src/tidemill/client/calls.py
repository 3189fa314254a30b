"""A request to the broker as a value: its content, and how to read the answer. No sockets, no waiting."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from tidemill.core.arguments import require_kind
from tidemill.core.errors import RequestError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request: its content, how long the broker itself may take, how to read the answer.

    It is repeatable if a retry after a lost answer does no harm, and the second answer is correct as well.
    With a request id it is for as long as the broker keeps that.
    """

    method: str
    path: str
    content: bytes
    read: Callable[[Any], T]
    patience_s: float = 0.0
    is_repeatable: bool = True
    request_id: str = ""


def post(
    path: str,
    body: Mapping[str, Any],
    read: Callable[[Any], T],
    *,
    patience_s: float = 0.0,
    is_repeatable: bool = True,
    request_id: str = "",
) -> Call[T]:
    given = {name: value for name, value in body.items() if value is not None}
    return Call("POST", path, json.dumps(given).encode(), read, patience_s, is_repeatable, request_id)


def get(path: str, query: Mapping[str, Any], read: Callable[[Any], T]) -> Call[T]:
    given = {name: value for name, value in query.items() if value is not None}
    return Call("GET", f"{path}?{urlencode(given)}" if given else path, b"", read)


def in_path(name: str) -> str:
    require_kind("a name", name, str, "a text")
    if not name:
        raise RequestError("the name is empty; name the topic, or the group")
    return quote(name, safe="")


def known(kind: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields this client knows; a newer broker may send more."""
    return {name: value for name, value in fields.items() if name in kind.__dataclass_fields__}
