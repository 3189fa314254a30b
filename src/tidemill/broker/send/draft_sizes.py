"""How many bytes drafts are: in memory while they are under way, and in the log at most."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.core.model import Draft

# Bytes of a stored message beside its body and the texts that nearly every message has none of.
_FIXED_BYTES = 256
_TEXT_BYTES_MAX = 6  # of one character, escaped in the JSON of the properties


def body_bytes(drafts: Sequence[Draft]) -> int:
    """Bytes of all bodies; what is no draft counts nothing and is refused when it is looked at."""
    bodies = (getattr(draft, "body", b"") for draft in drafts)
    return sum(len(body) for body in bodies if isinstance(body, bytes | bytearray | memoryview))


def bytes_at_most(drafts: Sequence[Draft]) -> int:
    """No fewer bytes than the drafts will take in the log."""
    total = body_bytes(drafts) + len(drafts) * _FIXED_BYTES
    for draft in drafts:
        texts = (draft.tag, *draft.keys, draft.message_group, draft.id or "")
        named = (text for pair in draft.kept_properties.items() for text in pair)
        total += _TEXT_BYTES_MAX * sum(len(text) + 1 for text in (*texts, *named))
    return total
