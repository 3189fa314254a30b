"""Two messages to which a library gave the same id are distinguished, and both are kept.

RocketMQ's clients make an id of the machine's network address, the process, the second and a counter. Threads
of one Node program come to the same ones, and so do containers that look alike to their clients. An id that
was seen within the hour then says nothing by itself: a send that is repeated brings the same content
(`content.py`), and what brings another is another message. It goes on under an id made of the first one and
of its content, so that it is recognised in its turn when it is repeated.

An id that a caller gave is the caller's word: there another content is refused.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from tidemill.broker.send.content import content_of
from tidemill.core.limits import ID_CHARS_MAX
from tidemill.core.model import Draft, StoredMessage

_DIGEST_BYTES = 8


def told_apart(draft: Draft, first: StoredMessage | None) -> Draft:
    """The draft; under an id of its own if `first`, which has the same id, is another message."""
    if first is None or not draft.has_made_id or (content := content_of(draft)) == content_of(first):
        return draft
    keys = (key.encode() for key in draft.keys)
    parts = (content["tag"], *keys, content["message_group"], content["properties"], content["body"])
    digest = hashlib.blake2b(b"\0".join(parts), digest_size=_DIGEST_BYTES).hexdigest()
    return replace(draft, id=f"{(draft.id or '')[: ID_CHARS_MAX - len(digest) - 1]}-{digest}")
