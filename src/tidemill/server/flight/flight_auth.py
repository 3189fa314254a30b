"""Authentication of Flight calls: the token and the intended broker, from the headers of each call.

Owns the way from a call's headers to its token, and the form of a refusal. A call may name the broker it is
meant for (`BROKER_HEADER`): a kept connection reconnects by itself to any process that listens on the port by
then, and another broker must not take messages meant for this one. What a token allows is checked where it is
used, as at the other endpoints (`security/caller.py`).
"""

from __future__ import annotations

import json
from typing import Any

from pyarrow import flight

from tidemill.core.addresses import BROKER_HEADER
from tidemill.core.errors import (
    BrokerClosedError,
    BusyError,
    ForbiddenError,
    TidemillError,
    TooManyRequestsError,
    UnauthorizedError,
)
from tidemill.server.flight.flight_traffic import FlightLimits
from tidemill.server.rejects import REJECTS
from tidemill.server.security.authority import Authority

MIDDLEWARE = "tidemill-token"


class _Bearer(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no types
    """Carries the header of one call to its handler, and releases the call's slot at its end."""

    def __init__(self, authorization: str, limits: FlightLimits) -> None:
        super().__init__()
        self.authorization = authorization
        self._limits = limits

    def call_completed(self, exception: Any) -> None:
        self._limits.leave()


class BearerFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Meets every call before a stream of it is read: an unknown caller's batches are not even gathered.

    (A request that is one message, such as a ticket, is there already; `flight_connections.py` bounds it.)
    """

    def __init__(self, limits: FlightLimits, authority: Authority | None, broker_id: str) -> None:
        super().__init__()
        self._limits = limits
        self._authority = authority
        self._broker_id = broker_id

    def start_call(self, info: Any, headers: dict[str, list[str | bytes]]) -> _Bearer:
        authorization, meant = _header(headers, "authorization"), _header(headers, BROKER_HEADER)
        if meant and meant != self._broker_id:  # before the token: another broker has other tokens
            raise flight.FlightUnavailableError(
                f"this is broker {self._broker_id}, not {meant}; read the Flight port from that broker's "
                "/healthz"
            )
        try:
            if self._authority is not None:
                self._authority.user_of_token(authorization)
            self._limits.enter()
        except (UnauthorizedError, TooManyRequestsError) as error:
            raise refusal_of(error) from None
        return _Bearer(authorization, self._limits)


def _header(headers: dict[str, list[str | bytes]], name: str) -> str:
    value = (headers.get(name) or [""])[0]
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")


def refusal_of(error: TidemillError) -> Exception:
    """An error that Flight can carry; its code is in `extra_info`."""
    REJECTS.add("flight", error.code)
    kind = flight.FlightServerError
    if isinstance(error, UnauthorizedError):
        kind = flight.FlightUnauthenticatedError
    elif isinstance(error, ForbiddenError):
        kind = flight.FlightUnauthorizedError
    elif isinstance(error, BusyError | BrokerClosedError):
        kind = flight.FlightUnavailableError
    extra = json.dumps({"code": error.code, "message": str(error)}).encode()
    refusal: Exception = kind(str(error), extra_info=extra)
    return refusal


def authorization_of(context: Any) -> str:
    """The `authorization` header of a call, empty if it has none."""
    bearer = context.get_middleware(MIDDLEWARE)
    return bearer.authorization if bearer is not None else ""
