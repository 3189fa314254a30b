"""Conversions of arguments shared by both clients."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Sequence
from typing import Any

from tidemill.client.checks import require_text_or_none
from tidemill.client.transport.connection import ConnectionLostError
from tidemill.client.transport.endpoint import Endpoint
from tidemill.client.transport.retrying import RetryPolicy
from tidemill.core.answers import Message
from tidemill.core.arguments import require_kind
from tidemill.core.durations import (
    Moment,
    Span,
    as_duration_ms,
    as_shift_ms,
    as_time_ms,
    require_forward,
)
from tidemill.core.errors import IllegalHandleError, RequestError, UnreachableError
from tidemill.core.model import Handle
from tidemill.core.request_ids import check_request_id, new_request_id


def timeout_of(timeout: Span) -> float:
    """How long an answer may take, in seconds."""
    timeout_ms = as_duration_ms(timeout)
    if timeout_ms < 1:
        raise RequestError(f"timeout={timeout!r} leaves no time for an answer; use 1ms or more, such as 10s")
    return timeout_ms / 1000


def token_of(token: str) -> str:
    """A token that goes into a header as it is; what it is stays unsaid."""
    if not token:
        return ""
    require_kind("token", token, str, "a text")
    if not token.isprintable():
        raise RequestError("the token contains a line break or an invalid character; correct it")
    return token


def policy_of(retry_for: Span) -> RetryPolicy:
    give_up_s = as_duration_ms(retry_for) / 1000
    return RetryPolicy(give_up_s, give_up_s > 0)


def ack_token_of(message: Message | str) -> str:
    if isinstance(message, str):
        return message
    if not isinstance(message, Message):
        raise RequestError(
            f"a {type(message).__name__} is neither a message nor an ack token; "
            "give several as arguments of their own: ack(*messages)"
        )
    return message.ack_token


def handles_of(handles: Iterable[Handle | str]) -> list[Handle]:
    """Several handles; one alone would be taken for its letters."""
    if isinstance(handles, str | Handle) or not isinstance(handles, Iterable):
        raise RequestError("give several handles as a list; one alone is for cancel")
    several: list[Any] = list(handles)
    if wrong := [handle for handle in several if not isinstance(handle, str | Handle)]:
        raise IllegalHandleError(f"{wrong[0]!r} is no handle; a message that is not timed has none")
    return [handle if isinstance(handle, Handle) else Handle.parse(handle) for handle in several]


def request_id_of(given: str | None) -> str:
    """The request id of a call: the one that was given, else a new one."""
    return new_request_id() if given is None else check_request_id(given)


def optional_time(value: Moment | None) -> int | None:
    return None if value is None else as_time_ms(value)


def optional_ms(value: Span | None) -> int | None:
    return None if value is None else as_duration_ms(value)


def table_request(
    table: str, topic: str | None, start: Moment | None, end: Moment | None, columns: Sequence[str] | None
) -> dict[str, Any]:
    """The request for the Flight endpoint."""
    from_ms, to_ms = optional_time(start), optional_time(end)
    if from_ms is not None and to_ms is not None:
        require_forward(from_ms, to_ms)
    return {
        "table": table,
        "topic": topic,
        "from_ms": from_ms,
        "to_ms": to_ms,
        "columns": list(columns) if columns is not None else None,
    }


def new_time(at: Moment | None, delay: Span | None, by: Span | None) -> dict[str, int]:
    """Where a reschedule moves to: exactly one is given."""
    given = {
        "deliver_at_ms": optional_time(at),
        "delay_ms": optional_ms(delay),
        "by_ms": None if by is None else as_shift_ms(by),
    }
    to = {name: value for name, value in given.items() if value is not None}
    if len(to) != 1:
        raise RequestError("pass exactly one of at, delay, by")
    return to


def chosen(key: str | None, start: Moment | None, end: Moment | None) -> dict[str, Any]:
    """Which messages of a topic: those with a key, or those due in a range."""
    require_text_or_none("key", key)
    from_ms, to_ms = optional_time(start), optional_time(end)
    has_range = from_ms is not None and to_ms is not None
    if (key is not None) == has_range or (from_ms is None) != (to_ms is None):
        raise RequestError("pass either a key or both ends of a range")
    return {"from_ms": from_ms, "to_ms": to_ms} if key is None else {"key": key}


def can_come_back(lost: ConnectionLostError) -> bool:
    """Whether another try may go better: a certificate that is not trusted, or no TLS at all, stays so."""
    cause = lost.__cause__
    is_not_tls = getattr(cause, "reason", "") == "WRONG_VERSION_NUMBER"
    return not (is_not_tls or isinstance(cause, ssl.SSLCertVerificationError))


def unreachable(endpoint: Endpoint, lost: ConnectionLostError, *, is_read: bool) -> UnreachableError:
    """The error that a lost connection becomes; a read changes nothing, so nothing is in doubt after it."""
    if lost.was_sent:
        # A port for TLS hangs up without a word when it is spoken to without.
        is_perhaps_tls = isinstance(lost.__cause__, EOFError) and not endpoint.is_tls
        return UnreachableError(
            f"the broker at {endpoint} was asked and did not answer: {lost}; "
            + (
                "nothing was changed, so ask again"
                if is_read
                else "whether it was carried out is not known, so look before you ask again"
            )
            + (", and write https:// before the address if this is its TLS port" if is_perhaps_tls else "")
        )
    what_to_do = "start one with `tidemill serve` or name another endpoint"
    if isinstance(lost.__cause__, ssl.SSLCertVerificationError):
        what_to_do = "name a certificate to trust (ca=, TIDEMILL_CA), or trust any (TIDEMILL_TLS_INSECURE=1)"
    elif isinstance(lost.__cause__, ssl.SSLError):
        what_to_do = "https:// is for the port of --tls-port"
    return UnreachableError(f"no broker at {endpoint}: {lost}; {what_to_do}")
