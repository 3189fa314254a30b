"""Two messages to which a library gave the same id are told apart, and both are kept.

RocketMQ's clients make an id of the machine's network address, the process, the second and a counter. Threads
of one Node program come to the same ones, and so do containers that look alike to their clients. An id that
was seen within the hour then says nothing by itself: a send that is repeated brings the same content, and
what brings another is another message. It goes on under an id made of the first one and of its content, so
that it is recognised in its turn when it is repeated.

An id that a caller gave is the caller's word: there the first message with it is the one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from tidemill.core.limits import ID_CHARS_MAX
from tidemill.core.model import Draft, StoredMessage
from tidemill.core.property_names import CARRIED_PROPERTIES, HALF_DELAY_PROPERTY
from tidemill.store.message_format import encode_properties

_DIGEST_BYTES = 8
# Of an attempt to send, or of the broker's own making: no content.
_NO_CONTENT = {*CARRIED_PROPERTIES, HALF_DELAY_PROPERTY}


def told_apart(draft: Draft, first: StoredMessage | None) -> Draft:
    """The draft; under an id of its own if `first`, which has the same id, is another message."""
    if first is None or not draft.has_made_id or _content(draft) == _content(first):
        return draft
    digest = hashlib.blake2b(b"\0".join(_content(draft)), digest_size=_DIGEST_BYTES).hexdigest()
    return replace(draft, id=f"{(draft.id or '')[: ID_CHARS_MAX - len(digest) - 1]}-{digest}")


def _content(message: Draft | StoredMessage) -> tuple[bytes, ...]:
    texts = (message.tag, *message.keys, message.message_group, _properties(message.properties))
    return (*(text.encode() for text in texts), bytes(message.body))


def _properties(properties: Mapping[str, str]) -> str:
    return encode_properties({k: properties[k] for k in sorted(properties.keys() - _NO_CONTENT)})
