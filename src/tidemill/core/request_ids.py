"""The ids of cancels and reschedules, by which a repeated request is recognised. Pure, but for making one.

Owns which texts may be ids (those of an HTTP header), and what is kept of one: 16 bytes. The caller's name
goes into them, so that one user never meets the request of another. The text itself is only for errors.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import blake2b

from tidemill.core.errors import IllegalRequestIdError

REQUEST_ID_CHARS_MAX = 255
REQUEST_ID_NAME = b"idempotency-key"  # of the header in HTTP, and of the schema's metadata in Arrow
REQUEST_ID_BYTES = 16
_VISIBLE = frozenset(map(chr, range(0x21, 0x7F)))
_CHARS_SHOWN = 40
_RULE = f"use 1 to {REQUEST_ID_CHARS_MAX} visible ASCII characters, such as a UUID"


@dataclass(frozen=True, slots=True)
class RequestKey:
    """A request id of one user: the text as it was given, and the 16 bytes that are kept of it."""

    text: str
    kept: bytes


def new_request_id() -> str:
    """An id that no other request has."""
    return os.urandom(16).hex()


def check_request_id(text: object) -> str:
    """The id, if it may be one; `IllegalRequestIdError` if not."""
    if not isinstance(text, str):
        raise IllegalRequestIdError(f"a request id must be a text, {type(text).__name__} was given")
    if not text:
        raise IllegalRequestIdError(f"the request id is empty; {_RULE}")
    if len(text) > REQUEST_ID_CHARS_MAX:
        raise IllegalRequestIdError(
            f"the request id {shown(text)} has {len(text)} characters, the limit is {REQUEST_ID_CHARS_MAX}; "
            f"{_RULE}"
        )
    if not _VISIBLE.issuperset(text):
        at = next(index for index, char in enumerate(text) if char not in _VISIBLE)
        raise IllegalRequestIdError(
            f"the request id {shown(text)} has the character {text[at]!a} at position {at + 1}; {_RULE}"
        )
    return text


def shown(text: str) -> str:
    """An id as an error names it: in ASCII, and not longer than a line has space for."""
    return ascii(text) if len(text) <= _CHARS_SHOWN else f"{text[:_CHARS_SHOWN]!a}..."


def id_of_part(request_id: str, part: int) -> str:
    """The id of one of several requests that a call needs; the first keeps the id of the call."""
    return request_id if part == 0 else _hashed(request_id, f"part {part}").hex()


def request_key(request_id: str, user: str = "", part: int = 0) -> RequestKey:
    """The key of an id of this user; `part` as in `id_of_part`."""
    own_id = id_of_part(check_request_id(request_id), part)
    return RequestKey(request_id, _hashed(own_id, f"user {user}"))


def _hashed(text: str, scope: str) -> bytes:
    # The id has no blank, so the two parts cannot be taken for others.
    return blake2b(f"{text} {scope}".encode(), digest_size=REQUEST_ID_BYTES).digest()
