"""Maps errors to HTTP: one table from an error's family to a status, and one form for all.

Every error answers `{"code", "message"}`: the code is stable, the message says what to do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from tidemill.core.arguments import SHOWN_CHARS, shown_as_json
from tidemill.core.errors import (
    BodyTooLargeError,
    BusyError,
    DiskFullError,
    ForbiddenError,
    IdInUseError,
    RequestError,
    RequestIdReusedError,
    TidemillError,
    TopicExistsError,
    TopicInUseError,
    UnauthorizedError,
    UnknownMessageError,
    UnknownTopicError,
)
from tidemill.server.rejects import REJECTS

# The first class that fits counts, so the special stands before its family.
_STATUS: tuple[tuple[type[TidemillError], int], ...] = (
    (UnauthorizedError, 401),
    (ForbiddenError, 403),
    (UnknownTopicError, 404),
    (UnknownMessageError, 404),
    (TopicExistsError, 409),
    (TopicInUseError, 409),
    (IdInUseError, 409),
    (BodyTooLargeError, 413),
    (RequestIdReusedError, 422),
    (RequestError, 400),
    (DiskFullError, 507),
    (BusyError, 429),
    (TidemillError, 503),  # storage, corruption, closed: the operator must act, the client may retry later
)
# Of each kind of the validator's errors, what to use instead; in braces, what the error has in its context.
_ADVICE = {
    "greater_than_equal": "use {ge} or more",
    "less_than_equal": "use {le} or less",
    "int_type": "use a whole number",
    "int_parsing": "use a whole number",
    "int_parsing_size": "use a smaller number",
    "int_from_float": "use a whole number",
    "finite_number": "use a whole number",
    "string_type": "use a text",
    "string_too_short": "use {min_length} or more characters",
    "string_too_long": "use {max_length} or fewer characters",
    "bool_type": "use true or false",
    "bool_parsing": "use true or false",
    "list_type": "use a list",
    "too_short": "use {min_length} or more values",
    "too_long": "use {max_length} or fewer values",
    "dict_type": "use an object",
    "model_type": "use an object",
    "model_attributes_type": "use an object",
    "literal_error": "use {expected}",
    "enum": "use {expected}",
}


def status_of(error: TidemillError) -> int:
    """The HTTP status of an error raised on purpose."""
    return next(status for kind, status in _STATUS if isinstance(error, kind))


def error_response(error: TidemillError) -> JSONResponse:
    headers = {"retry-after": "1"} if isinstance(error, BusyError) else None
    return _response(status_of(error), error.code, str(error), headers)


def _response(status: int, code: str, message: str, headers: Any = None) -> JSONResponse:
    REJECTS.add("http", code)
    return JSONResponse({"code": code, "message": message}, status, headers)


def _is_json(request: Request) -> bool:
    return "json" in request.headers.get("content-type", "")


def add_error_handlers(app: FastAPI) -> None:
    """Let every failure of a route answer in the one form."""

    async def on_tidemill_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, TidemillError)
        return error_response(error)

    async def on_invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first.get("loc", ())[1:]) or "the request"
        if first.get("type") == "json_invalid":  # its place is a number of characters
            where, what = "the request", f"not JSON, from character {where} on"
        elif not _is_json(request) and first.get("loc") == ("body",):
            what = "it is JSON with the header `Content-Type: application/json`"
        else:
            what = what_is_wrong(first, body_model(request.scope.get("route")))
        return _response(400, "bad-request", f"{where}: {what}; see /docs")

    async def on_http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        if error.status_code == 400 and error.__cause__ is not None:
            return _response(400, "bad-request", f"the request: {unread_body(error.__cause__)}; see /docs")
        words = {404: "no such page; see /docs", 405: "this page takes other methods; see /docs"}
        message = words.get(error.status_code, str(error.detail))
        return _response(error.status_code, f"http-{error.status_code}", message, error.headers)

    async def on_fault(request: Request, error: Exception) -> JSONResponse:
        # Starlette raises it again behind this answer, so the server logs it with its traceback.
        return _response(
            500,
            TidemillError.code,
            f"the broker failed at this request ({type(error).__name__}: {str(error)[:200]}), and whether it "
            "was carried out is not known; its log has the traceback",
        )

    app.add_exception_handler(Exception, on_fault)
    app.add_exception_handler(TidemillError, on_tidemill_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)


def error_bytes(error: TidemillError) -> bytes:
    """The body that refuses a request, where no web framework is at hand."""
    return refusal_bytes(error.code, str(error))


def refusal_bytes(code: str, message: str) -> bytes:
    REJECTS.add("http", code)
    return json.dumps({"code": code, "message": message}).encode()


# -- what is wrong with a body --------------------------------------------------------------------

# The validator's own texts name neither the value nor the field that was meant.


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
    if kind == "missing":
        return "it is missing; this field is required"
    if kind in _ADVICE:
        advice = _ADVICE[kind].format_map(error.get("ctx", {}))
        given = error.get("input")
        is_bound = "ge" in error.get("ctx", {}) or "le" in error.get(
            "ctx", {}
        )  # a query has numbers as texts
        return f"{str(given)[:SHOWN_CHARS] if is_bound else shown_as_json(given)} is not possible; {advice}"
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
