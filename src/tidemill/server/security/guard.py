"""The guard of the endpoints: authenticates every call and checks its rate, before its body is read.

Owns the refusals: over gRPC the method's own answer with a status (clients understand nothing else), over
HTTP a status and the common form of an error. What the user may do is checked where it is done (`caller.py`).

Wrong tokens and signatures are counted by address, at the rate of any client. An address over it is refused
before its credentials are checked, or it could continue guessing. Not so for this machine's own address,
which every client of the TLS port has: there one guessing client would lock out all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from ipaddress import IPv6Address, ip_address
from typing import Any

from tidemill.core.errors import BusyError, ForbiddenError, TidemillError, UnauthorizedError
from tidemill.server.asgi import Receive, Scope, Send, answer, header
from tidemill.server.grpc.framing import Status, Stream
from tidemill.server.grpc.protocol import SERVICE, service
from tidemill.server.grpc.status_codes import status_of
from tidemill.server.http.http_errors import error_bytes
from tidemill.server.http.http_errors import status_of as http_status_of
from tidemill.server.response_budget import Unread
from tidemill.server.security.authority import Authority
from tidemill.server.security.caller import set_caller
from tidemill.server.security.permissions import User
from tidemill.server.security.rates import Rates

# They keep a client alive and cost nothing; refusing them would only make it come more often.
_UNCOUNTED = {SERVICE + name for name in ("Heartbeat", "Telemetry", "NotifyClientTermination")}
_LOOKS = ("GET", "HEAD")
_OWN_SITE = ("same-origin", "none")  # none: a person typed the address
_CHALLENGE = (b"www-authenticate", b"Bearer")


class Guard:
    """Lets calls in or refuses them. Thread-safe."""

    def __init__(self, authority: Authority | None = None, rates: Rates | None = None) -> None:
        self._authority = authority
        self._rates = rates

    async def admits_grpc(
        self, scope: Scope, receive: Receive, send: Send, unread: Unread | None = None
    ) -> bool:
        """Whether a gRPC call may go on; if not, it has been answered. `unread`: its answer may be large."""
        try:
            user = None
            if self._authority is not None:
                authorization, date_time = _headers(scope, b"authorization", b"x-mq-date-time")
                find = partial(self._authority.user_of_signature, authorization, date_time)
                user = self._found(find, _peer(scope), is_guess=bool(authorization))
            set_caller(user)
            if self._rates is not None and scope["path"] not in _UNCOUNTED:
                self._rates.spend(_rate_key(user, _peer(scope)))
            if unread is not None:
                unread.require_capacity()
        except TidemillError as error:
            await _refuse_grpc(scope["path"], error, Stream(receive, send, 0))
            return False
        return True

    async def admits_http(self, scope: Scope, send: Send, unread: Unread | None = None) -> bool:
        """Whether an HTTP request may go on; if not, it has been answered."""
        try:
            authorization, *whence = _headers(scope, b"authorization", b"sec-fetch-site", b"origin", b"host")
            _refuse_other_sites(scope["method"], *whence)
            self.admit_http(authorization, _peer(scope))
            if unread is not None:
                unread.require_capacity()
        except TidemillError as error:
            await _refuse_http(error, send)
            return False
        return True

    def admit_http(self, authorization: str, peer: str) -> None:
        """Return if a request may go on, its caller known from now on; raises why not."""
        user = None
        if self._authority is not None:
            find = partial(self._authority.user_of_token, authorization)
            user = self._found(find, peer, is_guess=bool(authorization))
        set_caller(user)
        if self._rates is not None:
            self._rates.spend(_rate_key(user, peer))

    def _found(self, find: Callable[[], User], peer: str, *, is_guess: bool) -> User:
        """Who shows what `find` looks at; counted if it is wrong. Who shows nothing does not guess."""
        rates, address = self._rates, _rate_key(None, peer)
        if rates is None or not is_guess:
            return find()
        if not _is_shared(peer):
            rates.require(address)
        try:
            return find()
        except UnauthorizedError:
            rates.spend(address)
            raise


def _refuse_other_sites(method: str, relation: str, origin: str, host: str) -> None:
    """`ForbiddenError` if a browser sends a request that changes something from a page of another site.

    Any web page can make its browser send requests to a broker on the same machine. Only browsers send these
    headers; where they do not state the relation, the origin is compared.
    """
    if method in _LOOKS:
        return
    is_own = relation in _OWN_SITE if relation else not origin or origin.partition("://")[2] == host
    if not is_own:
        raise ForbiddenError("cross-site request rejected; use the broker's own dashboard")


def _rate_key(user: User | None, peer: str) -> str:
    """Whose calls are counted."""
    return f"user {user.name}" if user is not None else f"address {peer}"


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


@lru_cache(maxsize=1024)
def _is_shared(peer: str) -> bool:
    """Whether others may have the same address: this machine's own, or none that is known."""
    try:
        address = ip_address(peer)
    except ValueError:
        return True
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def _headers(scope: Scope, *names: bytes) -> list[str]:
    return [str(header(scope, name), "utf-8", "surrogateescape") for name in names]


async def _refuse_grpc(path: str, error: TidemillError, stream: Stream) -> None:
    name = path.removeprefix(SERVICE)
    response: Any = getattr(service, "TelemetryCommand" if name == "Telemetry" else f"{name}Response", None)
    try:
        if response is None or not path.startswith(SERVICE):
            await stream.end(Status.UNIMPLEMENTED, f"there is no method {path}")
            return
        await stream.write([response(status=status_of(error)).SerializeToString()])
        await stream.end(Status.OK, "")
    except OSError:
        return  # gone already


async def _refuse_http(error: TidemillError, send: Send) -> None:
    headers = []
    if isinstance(error, UnauthorizedError):
        headers.append(_CHALLENGE)
    elif isinstance(error, BusyError):
        headers.append((b"retry-after", b"1"))
    await answer(send, http_status_of(error), error_bytes(error), headers=headers)
