"""Errors across a wire: by the code of its class an error is known on the other side.

Owns the way back from a code to the class that carries it, so that a client catches the very errors that a
broker in the same process would raise. An unknown code (of a newer broker) becomes its
family's base.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.core.errors import TidemillError


def _with_subclasses(kind: type[TidemillError]) -> Iterator[type[TidemillError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _with_subclasses(child)


def error_of(code: str, message: str) -> TidemillError:
    """The error that a code and a message stand for."""
    for kind in _with_subclasses(TidemillError):
        if kind.code == code:
            return kind(message)
    return TidemillError(f"{code}: {message}")
