"""Addresses to listen on and to be reached at, and how a call says whom it expects there."""

from __future__ import annotations

BROKER_HEADER = "x-tidemill-broker"  # of a Flight call: the id of the broker it is for

_EVERY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def local_address(host: str) -> str:
    """Where this machine reaches what listens on `host`: itself, where that means every address."""
    return _EVERY.get(host, host)
