"""A process that only writes and syncs a few bytes, a hundred times a second: the machine's own lateness.

Run as `python -m benchmarks.metronome FILE`; ends when a line comes on standard input, and then
prints its beats as JSON: when each was due (Unix ms) and by how many ms it was late. `Metronome` runs it, out
of reach of a terminal's Ctrl-C, and it ends silently when `Metronome` is gone.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tidemill.core.clock import wall_s
from tidemill.core.limits import MIB
from tidemill.log.disk import RealDisk

Beats = npt.NDArray[np.float64]

_EVERY_S = 0.01
_RECORD_BYTES = 200  # about a release record for one message
_PLACES = MIB // _RECORD_BYTES


class Metronome:
    """Beats from its making until it is stopped."""

    def __init__(self, file: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.metronome", str(file)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def stop(self) -> Beats:
        """Its beats, two columns: due (Unix ms), late by (ms)."""
        said, _ = self._process.communicate("\n")
        return np.array(json.loads(said), np.float64).reshape(-1, 2)


def _beat(path: Path) -> None:
    file = RealDisk().open(path, create=True)
    file.preallocate(MIB)
    file.sync()
    beats: list[tuple[float, float]] = []
    due_s = wall_s()
    while not select.select([sys.stdin], [], [], max(0.0, due_s - wall_s()))[0]:
        file.write(len(beats) % _PLACES * _RECORD_BYTES, bytes(_RECORD_BYTES))
        file.sync()
        beats.append((due_s * 1000, (wall_s() - due_s) * 1000))
        due_s = max(due_s + _EVERY_S, wall_s())
    file.close()
    if sys.stdin.readline():  # else the reader has ended
        print(json.dumps(beats))


if __name__ == "__main__":
    _beat(Path(sys.argv[1]))
