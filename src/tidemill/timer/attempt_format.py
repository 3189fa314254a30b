"""The attempt: the last step number that a shard has used, whether or not the step was finished.

    offset  bytes  field
    0       8      epoch of the step
    8       8      step

Little-endian. Format 1. Kept in two generations by `log/checkpoint.py`, which adds the checksum.
"""

from __future__ import annotations

import struct

from tidemill.core.errors import CorruptionError

ATTEMPT_FORMAT = 1
ATTEMPT_NAME = "attempt"

_ATTEMPT = struct.Struct("<QQ")


def encode_attempt(epoch: int, step: int) -> bytes:
    return _ATTEMPT.pack(epoch, step)


def decode_attempt(content: bytes) -> tuple[int, int]:
    """Epoch and step."""
    if len(content) != _ATTEMPT.size:
        raise CorruptionError(f"an attempt has {_ATTEMPT.size} bytes, this has {len(content)}")
    epoch, step = _ATTEMPT.unpack(content)
    return epoch, step
