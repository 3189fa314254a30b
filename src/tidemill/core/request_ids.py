"""The ids of cancels and reschedules, by which a repeated request is recognised. Pure, but for making one.

Owns which texts may be ids (those of an HTTP header), and what is kept of one: 16 bytes. The caller's name
goes into them, so that one user never meets the request of another.
"""

from __future__ import annotations

import os
from hashlib import blake2b

from tidemill.core.errors import IllegalRequestId

REQUEST_ID_CHARS_MAX = 255
REQUEST_ID_NAME = b"idempotency-key"  # of the header in HTTP, and of the schema's metadata in Arrow
REQUEST_ID_BYTES = 16
_VISIBLE = frozenset(map(chr, range(0x21, 0x7F)))


def new_request_id() -> str:
    """An id that no other request has."""
    return os.urandom(16).hex()


def check_request_id(text: object) -> str:
    """The id, if it may be one; `IllegalRequestId` if not."""
    if not isinstance(text, str):
        raise IllegalRequestId(f"a request id must be a text, {type(text).__name__} was given")
    if not 1 <= len(text) <= REQUEST_ID_CHARS_MAX or not _VISIBLE.issuperset(text):
        raise IllegalRequestId(
            f"the request id {text[:40]!r} is not possible; use 1 to {REQUEST_ID_CHARS_MAX} visible ASCII "
            "characters, such as a UUID"
        )
    return text


def id_of_part(request_id: str, part: int) -> str:
    """The id of one of several requests that a call needs; the first keeps the id of the call."""
    return request_id if part == 0 else _hashed(request_id, f"part {part}").hex()


def request_key(request_id: str, user: str = "") -> bytes:
    """The 16 bytes that are kept of an id of this user."""
    return _hashed(check_request_id(request_id), f"user {user}")


def _hashed(text: str, scope: str) -> bytes:
    # The id has no blank, so the two parts cannot be taken for others.
    return blake2b(f"{text} {scope}".encode(), digest_size=REQUEST_ID_BYTES).digest()
