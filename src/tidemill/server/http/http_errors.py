"""Maps errors to HTTP: one table from an error's family to a status, and one form for all.

Every error answers `{"code", "message"}`: the code is stable, the message says what to do.
"""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

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
from tidemill.server.http.wrong_fields import body_model, unread_body, what_is_wrong
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
