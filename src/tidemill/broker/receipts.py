"""The text of a receipt: which delivery it settles. Opaque to consumers, short as every ack carries it."""

from __future__ import annotations

import base64
import binascii

from tidemill.core.errors import IllegalHandle


def encode_receipt(group: str, topic: str, queue_id: int, offset: int, attempt: int) -> str:
    text = "\n".join(("r1", group, topic, str(queue_id), str(offset), str(attempt)))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_receipt(receipt: str) -> tuple[str, str, int, int, int]:
    """Group, topic, queue, offset, attempt; `IllegalHandle` if it never was a receipt."""
    try:
        text = base64.urlsafe_b64decode(receipt + "=" * (-len(receipt) % 4)).decode()
        version, group, topic, queue_id, offset, attempt = text.split("\n")
        if version != "r1":
            raise ValueError(version)
        return group, topic, int(queue_id), int(offset), int(attempt)
    except (ValueError, binascii.Error, UnicodeError):
        raise IllegalHandle(f"not a receipt: {receipt[:60]!r}; pass the receipt of the delivery") from None
