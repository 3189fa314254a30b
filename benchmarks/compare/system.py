"""The two protocols that Tidemill and its peers implement for a measurement.

A `System` is known by name, says whether it is installed, and can be served from a directory. `Served` is
one that runs. What a method called `ready_to_…` returns is what is timed; getting ready is not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from benchmarks.compare.messages import Messages

# Messages that a consumer takes at once, and that a poller claims.
BATCH = 100


class Served(Protocol):
    """A running system. Everything that it answers is on disk."""

    @property
    def address(self) -> str:
        """Where its workers find it."""
        ...

    def pids(self) -> list[int]:
        """Its server's processes; none where it has no server."""
        ...

    def send(self, number: int, due_ms: int) -> None:
        """One message; any number of threads at once."""
        ...

    def stored(self, due_ms: int) -> list[int]:
        """The numbers of those that wait and are due at this millisecond, each as often as it is stored."""
        ...

    def kill_and_start(self) -> bool:
        """SIGKILL to its server, and start it again; returns before that is open. False: it has no server."""
        ...

    def is_back(self, number: int, due_ms: int) -> bool:
        """Whether it takes this message, over a connection of its own, tried once."""
        ...

    @property
    def away_errors(self) -> tuple[type[Exception], ...]:
        """What a send raises while the server is away; the same send again stores the message once."""
        ...

    def ready_to_schedule(self, messages: Messages) -> Callable[[], None]:
        """All of them, in the way that this system has for many."""
        ...

    def ready_to_cancel(self, messages: Messages, numbers: Sequence[int]) -> Callable[[], int]:
        """These of the messages that were scheduled last; says how many were cancelled."""
        ...

    def waiting(self) -> int:
        """How many messages wait for their time."""
        ...

    def are_queued(self, messages: Messages) -> bool | None:
        """Whether these, the only ones due, are all in the queue; None: consumers claim, there is none."""
        ...

    def disk_bytes(self) -> int:
        """What the messages take on disk, without what is only set aside or passing through."""
        ...


class System(Protocol):
    """One of those that are compared."""

    @property
    def name(self) -> str:
        """In figures and options."""
        ...

    @property
    def title(self) -> str:
        """For people."""
        ...

    @property
    def needs_mover(self) -> bool:
        """Whether a mover must put due messages into a queue."""
        ...

    def missing(self, directory: Path) -> str:
        """What to do before it can be measured in this directory; empty: nothing."""
        ...

    def serving(self, directory: Path) -> AbstractContextManager[Served]:
        """Serve this directory, which is not there yet, until the block ends."""
        ...

    def consume(self, address: str, poll_s: float) -> Generator[list[bytes]]:
        """Bodies of due messages as they come, for ever; when it is closed, the last are settled as well."""
        ...

    def move(self, address: str, poll_s: float) -> Generator[int]:
        """Put what is due into the queue, for ever; says each time how many. Only where one is needed."""
        ...
