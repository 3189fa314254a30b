"""Who calls over Flight, and whether they may: the bearer token of each call, asked of an authorizer.

Owns the way from a call's header to its token. What a token allows is the authorizer's to say; without one
everybody may do everything, as at the other doors.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Protocol

from pyarrow import flight

from tidemill.server.authority import Authority
from tidemill.server.permissions import Verb

MIDDLEWARE = "tidemill-token"


class Authorizer(Protocol):
    """Decides on each call. Must be thread-safe."""

    def authorize(self, authorization: str, verb: Verb, topic: str | None) -> None:
        """Return if the caller with this `authorization` header may; raise `Unauthorized` or `Forbidden`.

        A topic of None means all of them.
        """
        ...


class AllowAll:
    """Nobody is asked who they are."""

    def authorize(self, authorization: str, verb: Verb, topic: str | None) -> None:
        return


class FileAuthorizer:
    """Asks the permissions file that the other doors ask too."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()  # protects _authority, which is made for one thread
        self._authority = Authority(path)

    def authorize(self, authorization: str, verb: Verb, topic: str | None) -> None:
        with self._lock:
            user = self._authority.user_of_token(authorization)
        if topic is None:
            user.require_everywhere(verb)
        else:
            user.require(verb, topic=topic)


class _Bearer(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no types
    """Carries the header of one call to its handler."""

    def __init__(self, authorization: str) -> None:
        super().__init__()
        self.authorization = authorization


class BearerFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    def start_call(self, info: Any, headers: dict[str, list[str | bytes]]) -> _Bearer:
        values = headers.get("authorization") or [""]
        value = values[0]
        return _Bearer(value if isinstance(value, str) else value.decode("utf-8", "surrogateescape"))


def authorization_of(context: Any) -> str:
    """The `authorization` header of a call, empty if it has none."""
    bearer = context.get_middleware(MIDDLEWARE)
    return bearer.authorization if bearer is not None else ""
