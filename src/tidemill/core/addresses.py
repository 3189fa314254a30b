"""Addresses to listen on and to be reached at."""

from __future__ import annotations

_EVERY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def local_address(host: str) -> str:
    """Where this machine reaches what listens on `host`: itself, where that means every address."""
    return _EVERY.get(host, host)
