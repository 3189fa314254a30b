"""What is wrong with a request's body, in words: from the validator's error to a text with value and limit.

Pure. The validator's own words name neither the value nor the field that was meant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel

_LIMITS = {
    "greater_than_equal": ("ge", "use {} or more"),
    "less_than_equal": ("le", "use {} or less"),
}
_SHOWN_CHARS = 40


def body_model(route: Any) -> type[BaseModel] | None:
    """The model of the body that a route takes."""
    field = getattr(route, "body_field", None)
    kind = getattr(getattr(field, "field_info", None), "annotation", None)
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def what_is_wrong(error: Mapping[str, Any], model: type[BaseModel] | None) -> str:
    """One error of the validator."""
    kind, place = str(error.get("type")), tuple(error.get("loc", ()))
    if kind == "extra_forbidden":
        return _unknown_field(str(place[-1]), _fields_at(model, place[1:-1]))
    if kind in _LIMITS:
        name, advice = _LIMITS[kind]
        limit = error.get("ctx", {}).get(name)
        return f"{str(error.get('input'))[:_SHOWN_CHARS]} is not possible; {advice.format(limit)}"
    return str(error.get("msg", "not valid"))


def unread_body(cause: BaseException) -> str:
    """Why a body could not even be read as JSON."""
    if isinstance(cause, UnicodeDecodeError):
        return (
            f"the body is not {cause.encoding.upper()} text, byte {cause.start} is "
            f"0x{cause.object[cause.start]:02x}; encode the JSON as UTF-8, and send bytes as `body_base64`"
        )
    if isinstance(cause, RecursionError):
        return "the JSON is nested too deeply; flatten it"
    return f"the body cannot be read ({type(cause).__name__}: {cause}); send JSON encoded as UTF-8"


def _fields_at(model: type[BaseModel] | None, place: Sequence[int | str]) -> list[str]:
    """The fields that the model has at a place within it; none where that is not known."""
    kind: Any = model
    for part in place:
        if isinstance(part, int):
            kind = next(iter(get_args(kind)), None)
        else:
            kind = kind.model_fields[part].annotation if _is_model(kind) else None
    return list(kind.model_fields) if _is_model(kind) else []


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _unknown_field(name: str, known: Sequence[str]) -> str:
    if f"{name}_ms" in known:
        return f"unknown field; use `{name}_ms`, in milliseconds"
    if near := get_close_matches(name, known, 1) or [other for other in known if other == f"{name}s"]:
        return f"unknown field; did you mean `{near[0]}`?"
    return f"unknown field; known are {', '.join(known)}" if known else "unknown field"
