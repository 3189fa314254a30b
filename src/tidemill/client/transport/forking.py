"""Resets a client in a forked process: it starts anew and leaves the parent's sockets and locks alone.

A fork copies sockets that the parent continues to use, and locks and queues as they were at that moment, held
by threads that the child does not have. So in the child each client makes all of them anew before it can be
used. Clients are registered by weak references.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_steps: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def in_a_forked_child(client: T, step: Callable[[T], None]) -> None:
    """Take this step for a client at the beginning of every process that is forked from this one."""
    _steps[client] = step


def _take_the_steps() -> None:
    for client, step in list(_steps.items()):
        step(client)


os.register_at_fork(after_in_child=_take_the_steps)


def keep_for_ever(parents: object) -> None:
    """Never let go of an object of the parent's, also not at the end of the process.

    For what does more at its end than close a descriptor: leaves an event loop whose epoll the parent still
    waits on, or waits for threads that are not there.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(parents))
