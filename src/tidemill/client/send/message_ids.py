"""Message ids made by the client, so that a send repeated after a lost answer is recognised.

Each id is the client's own random prefix and a number; a forked process gets its own prefix.
"""

from __future__ import annotations

import os
from itertools import count


class MessageIds:
    """Gives out ids, never the same one twice. Thread-safe."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._prefix = os.urandom(8).hex().upper()
        self._next = count().__next__

    def next(self) -> str:
        return f"{self._prefix}{self._next():08X}"


IDS = MessageIds()
