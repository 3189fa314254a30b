"""Limits the messages of one request, by number and by bytes.

The broker refuses a request of more than `FRAME_BYTES_MAX`. What is counted here is bodies and properties, as
characters; the rest of a message is small, and JSON encodes a character in at most six bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from tidemill.client.send.drafts import with_id
from tidemill.core.errors import RequestError
from tidemill.core.limits import BODY_BYTES_MAX, FRAME_BYTES_MAX, MIB
from tidemill.core.model import Draft
from tidemill.core.splitting import split

MESSAGES_MAX: Final = 4096
BYTES_MAX: Final = 8 * MIB

assert BODY_BYTES_MAX < BYTES_MAX and 6 * BYTES_MAX < FRAME_BYTES_MAX


def weight_of(draft: Draft) -> int:
    """What a message adds to a request."""
    try:
        weight = len(draft.body)
        return weight + len(str(draft.properties)) if draft.properties else weight
    except (TypeError, AttributeError):
        return 0  # no message: it is refused in words where it is encoded


def in_requests(drafts: Iterable[Any]) -> Iterator[list[Draft]]:
    """The drafts, each with an id, in lists that fit into a request."""
    for part in split(drafts, MESSAGES_MAX, BYTES_MAX, weight_of):
        yield [_with_id_or_fault(draft) for draft in part]


def _with_id_or_fault(draft: Any) -> Any:
    try:
        return with_id(draft)
    except RequestError as fault:
        return fault
