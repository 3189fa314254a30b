"""Checks of argument types and ranges: the error says what was given and what to use instead.

Python checks no types at run time; what is written to a log must have the declared type.
"""

from __future__ import annotations

import json
from typing import Any

from tidemill.core.errors import RequestError

NO_LIMIT = 1 << 62
SHOWN_CHARS = 40


def require_int(name: str, value: Any) -> None:
    """`value` must be a whole number, however large."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be a whole number, {value!r} was given")


def require_whole(name: str, value: Any, low: int, high: int) -> None:
    """`value` must be a whole number in `[low, high]`."""
    require_int(name, value)
    if not low <= value <= high:
        raise RequestError(
            f"{name} {value} is not possible; use {low} {'or more' if high >= NO_LIMIT else f'to {high}'}"
        )


def require_kind(name: str, value: Any, kinds: type | tuple[type, ...], wanted: str) -> None:
    """`value` must be an instance of one of `kinds`; the error calls them `wanted`."""
    if not isinstance(value, kinds):
        raise RequestError(f"{name} must be {wanted}, {type(value).__name__} was given")


def shown_as_json(value: Any) -> str:
    """A value of a JSON document, for an error; of a long one, what tells it from the right one."""
    match value:
        case list():
            return f"a list of {len(value)}"
        case dict():
            return "an object"
        case str() if len(value) > SHOWN_CHARS:
            return f"a text of {len(value)} characters"
    return json.dumps(value, default=str)[:SHOWN_CHARS]
