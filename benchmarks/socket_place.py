"""A directory for a peer's Unix socket: every system is connected by its fastest transport."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def socket_place(user: str | None = None) -> Iterator[str]:
    """A new directory of a user: with a short path, because that of a socket has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="tidemill-peer-") as place:
        if user is not None:
            shutil.chown(place, user)
        yield place
