"""What is held for the whole broker: releases, absorbing, or both; kept in the data directory.

Owns the file pair `holds.0/1`: JSON, `releases_since_ms`, `absorbing_since_ms` (null: not held) and
`absorb_below_seq`. Absorbing is held by a seq: entries below it may be absorbed (they were when the hold
began, and are again if a shard is built anew), entries from it on wait. Both files hold the same.

Invariants: a hold survives a crash from the moment `save` returns; where nothing was ever held there is no
file. One thread at a time changes it (`switches.py`), any may read.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tidemill.core.errors import DiskFullError
from tidemill.core.holds import Held
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import Disk

HOLDS_NAME = "holds"
HOLDS_FORMAT = 1


@dataclass(frozen=True, slots=True)
class HoldsState:
    """Since when each is held; None: it is not."""

    releases_since_ms: int | None = None
    absorbing_since_ms: int | None = None
    absorb_below_seq: int = 0  # only where absorbing is held

    def since_ms(self, what: Held) -> int | None:
        return self.releases_since_ms if what is Held.RELEASES else self.absorbing_since_ms

    def with_hold(self, what: Held, since_ms: int | None, below_seq: int = 0) -> HoldsState:
        """The state with this held since then, or (None) not held."""
        if what is Held.RELEASES:
            return replace(self, releases_since_ms=since_ms)
        return replace(self, absorbing_since_ms=since_ms, absorb_below_seq=below_seq)


def encode_holds(state: HoldsState) -> bytes:
    return json.dumps(asdict(state)).encode()


def decode_holds(content: bytes) -> HoldsState:
    return HoldsState(**json.loads(content))


class Holds:
    """The state as it is in the directory, and as the services are to act on it."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._checkpoint = Checkpoint(disk, directory, HOLDS_NAME, HOLDS_FORMAT, decode_holds)
        content = self._checkpoint.load_kept(
            "it is not known whether releases or absorbing are held. Nothing was changed. Restore one of "
            "them from a backup, or remove both to start with nothing held"
        )
        self.state = HoldsState() if content is None else decode_holds(content)
        with suppress(DiskFullError):  # the next opening will do as well
            self._checkpoint.keep_twice()

    @property
    def holds_releases(self) -> bool:
        return self.state.releases_since_ms is not None

    @property
    def holds_absorbing(self) -> bool:
        return self.state.absorbing_since_ms is not None

    def absorb_end(self, safe_seq: int) -> int:
        """Entries below this may be absorbed, of those below `safe_seq`."""
        state = self.state
        return safe_seq if state.absorbing_since_ms is None else min(safe_seq, state.absorb_below_seq)

    def save(self, state: HoldsState) -> None:
        """Keep this state; it survives a power cut when this returns. What services act on is `state`."""
        self._checkpoint.save(encode_holds(state), sync=True)
        with suppress(DiskFullError):
            self._checkpoint.keep_twice()
