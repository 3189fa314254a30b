"""The signature of RocketMQ's clients: read from a call's headers and verified.

    authorization: MQv2-HMAC-SHA1 Credential=AK, SignedHeaders=x-mq-date-time, Signature=hex
    signature = HMAC-SHA1(secret key, the text of x-mq-date-time)

Only the time is signed, so an intercepted signature is valid for as long as its time is: use TLS. How long
that is cannot be determined exactly, because most clients print their *local* time and call it UTC. The time
is accepted if it is within the skew of now in any existing time zone, or in those that the permissions file
names.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidemill.core.durations import parse_time_ms, zone_offset_ms
from tidemill.core.errors import RequestError, UnauthorizedError
from tidemill.server.security.permissions import Permissions, User

_SCHEME = "MQv2-HMAC-SHA1"
_QUARTER_MS = 15 * 60_000
# Every offset from UTC in use, in quarters of an hour: the whole hours, and the odd ones.
_WHOLE_HOURS = range(-12 * 4, 14 * 4 + 1, 4)
_ODD_QUARTERS = (-38, -14, -10, 14, 18, 22, 23, 26, 35, 38, 42, 51, 55)
_ALL_OFFSETS_MS = tuple(quarters * _QUARTER_MS for quarters in (*_WHOLE_HOURS, *_ODD_QUARTERS))
_TIME = re.compile(r"\d{4}-?\d\d-?\d\d[T ]\d\d")
_EXACT_OFFSET = re.compile(r"[+-](?!00:?00)\d\d:?\d\d$")  # not zero, so it was meant as it stands
_NOT_A_TIME = "x-mq-date-time is not a time like 20270101T080000Z"
_UNKNOWN_USER = User("", (), secret_key=b"key of no user")


@dataclass(frozen=True, slots=True)
class Signature:
    """A client's credentials."""

    access_key: str
    digest: bytes = field(repr=False)

    @classmethod
    def parse(cls, authorization: str) -> Signature:
        scheme, _, rest = authorization.strip().partition(" ")
        parts = dict(_pairs(rest))
        access_key = parts.get("Credential", "").split("/", 1)[0]
        if not authorization or (scheme == _SCHEME and not access_key):
            raise UnauthorizedError("authentication required; give the client an access key and a secret key")
        if scheme != _SCHEME:
            raise UnauthorizedError(f"the authorization is not a signature of the kind {_SCHEME}")
        try:
            return cls(access_key, bytes.fromhex(parts.get("Signature", "")))
        except ValueError:
            raise UnauthorizedError("the signature is not written in hexadecimal digits") from None


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        yield name, value


def user_of(permissions: Permissions, authorization: str, date_time: str, now_ms: int) -> User:
    """The user who signed; `UnauthorizedError` if unknown, or if the signature is too old."""
    signature = Signature.parse(authorization)
    user = permissions.by_access_key.get(signature.access_key, _UNKNOWN_USER)
    ours = hmac.digest(user.secret_key, date_time.encode("utf-8", "surrogateescape"), "sha1")
    if not hmac.compare_digest(ours, signature.digest) or user is _UNKNOWN_USER:
        raise UnauthorizedError("the signature is wrong: access key or secret key do not match")
    _require_fresh(permissions, date_time, now_ms)
    return user


def _require_fresh(permissions: Permissions, date_time: str, now_ms: int) -> None:
    if not _TIME.match(date_time):
        raise UnauthorizedError(_NOT_A_TIME)
    try:
        ahead_ms = parse_time_ms(date_time, now_ms) - now_ms
    except (RequestError, OverflowError, ValueError):
        raise UnauthorizedError(_NOT_A_TIME) from None
    offsets_ms = (0,) if _EXACT_OFFSET.search(date_time) else _offsets_ms(permissions, now_ms)
    if not any(abs(ahead_ms - offset_ms) <= permissions.skew_ms for offset_ms in offsets_ms):
        raise UnauthorizedError(
            f"the signature has expired: its time differs from the broker's by more than "
            f"{permissions.skew_ms // 1000} s; set the client's clock"
        )


def _offsets_ms(permissions: Permissions, now_ms: int) -> tuple[int, ...]:
    if not permissions.zones:
        return _ALL_OFFSETS_MS
    return (0, *(zone_offset_ms(zone, now_ms) for zone in permissions.zones))
