"""Addresses to listen on and to be reached at, and how a call says whom it expects there."""

from __future__ import annotations

import ipaddress

BROKER_HEADER = "x-tidemill-broker"  # of a Flight call: the id of the broker it is for
UNIX_SOCKET_HEADER = (
    "x-tidemill-unix-socket"  # of an answer: the name of a Unix socket for callers on this machine
)

_EVERY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def local_address(host: str) -> str:
    """Where this machine reaches what listens on `host`: itself, where that means every address."""
    return _EVERY.get(host, host)


def is_this_machine(host: str) -> bool:
    """Whether a name or address can mean no other machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def unix_socket_address(name: str) -> str:
    """The Unix socket of that name: in no directory, gone with the process that holds it."""
    return f"\0{name}"
