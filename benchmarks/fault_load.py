"""Load on a broker while its processes are killed or stopped, and its history afterwards.

Owns the messages that were sent and answered: half of them near, half through the wheel, two hundred a second
from a client of its own, through every fault without a pause. `settle` ends it, waits until all are out and
compares with the history: each answered message must be in its topic once, none early. The lateness is
reported by fault, with the lateness of the machine itself.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from benchmarks.metronome import Beats, Metronome
from benchmarks.served_spark import LEAD_MS, ServedSpark
from tidemill.cli.bench.workload import tables
from tidemill.cli.child_processes import wait_for
from tidemill.core.clock import SystemClock
from tidemill.core.errors import StorageError
from tidemill.core.model import Draft, SendResult
from tidemill.log.arrays import I64, Flags

_TOPIC, _WORK_TOPIC = "load", "work"
_BATCH = 20
_BATCH_EVERY_S = 0.1
_WORK_ROWS, _WORK_PIECE_ROWS = (
    60_000,
    4_000,
)  # in pieces: one large frame would hold up the releases behind it
_SPREAD_MS = 97  # due times of a batch are so far apart


@dataclass(frozen=True, slots=True)
class Span:
    """From when to when, Unix ms."""

    from_ms: int
    to_ms: int

    def has(self, times_ms: I64) -> Flags:
        found: Flags = (times_ms >= self.from_ms) & (times_ms < self.to_ms)
        return found


@dataclass(frozen=True, slots=True)
class UnderFault:
    """What fell due during one fault."""

    count: int
    late_p99_ms: float
    late_max_ms: float
    machine_p99_ms: float
    vias: Counter[str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of all messages: the first three are wrong, each by itself."""

    lost: list[str]
    doubled: list[str]
    early: list[str]
    sent_count: int
    by_fault: dict[str, UnderFault] = field(default_factory=dict)


class Load:
    """Sends from `start` until it is settled."""

    def __init__(self, serve: ServedSpark) -> None:
        self._serve = serve
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._due_ms: dict[str, int] = {}  # by id, as answered
        self._refused: list[Exception] = []
        self._faults: dict[str, Span] = {}
        self._outages: list[Span] = []
        self._verdict: Verdict | None = None

    def start(self) -> None:
        self._metronome = Metronome(self._serve.directory.with_suffix(".beats"))
        self._thread.start()
        self.go_on()

    def go_on(self, count: int = 5 * _BATCH) -> None:
        """Return when so many more are sent."""
        enough = len(self._due_ms) + count
        wait_for("the load goes on", lambda: len(self._due_ms) >= enough or bool(self._refused))
        if self._refused:
            raise StorageError(f"a message was refused: {self._refused[0]}")

    def work(self) -> None:
        """Many messages that are due in hours, for the pipeline to absorb."""
        with self._serve.client() as client:
            (table,) = tables(_WORK_ROWS, SystemClock().now_ms())
            for first in range(0, _WORK_ROWS, _WORK_PIECE_ROWS):
                client.schedule(table.slice(first, _WORK_PIECE_ROWS), topic=_WORK_TOPIC)

    @contextmanager
    def fault(self, name: str) -> Iterator[None]:
        """What falls due in this block belongs to that fault."""
        from_ms = SystemClock().now_ms()
        yield
        self._faults[name] = Span(from_ms, SystemClock().now_ms())

    @contextmanager
    def broker_is_away(self) -> Iterator[None]:
        """What falls due while the broker itself is dead can only be late."""
        from_ms = SystemClock().now_ms()
        yield
        self._serve.wait_until_open()
        self._outages.append(Span(from_ms, SystemClock().now_ms()))

    def _run(self) -> None:
        with self._serve.client() as client:
            while not self._is_over.wait(_BATCH_EVERY_S):
                delays = [(500 if i % 2 else LEAD_MS + 1_000) + _SPREAD_MS * i for i in range(_BATCH)]
                for answer in client.send_many([Draft(_TOPIC, b"x", delay_ms=delay) for delay in delays]):
                    if isinstance(answer, SendResult):
                        assert answer.deliver_at_ms is not None
                        self._due_ms[answer.id] = answer.deliver_at_ms
                    else:
                        self._refused.append(answer)

    # -- afterwards -------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the sending; nothing is compared."""
        if self._thread.is_alive():
            self._is_over.set()
            self._thread.join()

    def settle(self) -> Verdict:
        """The same however often it is asked."""
        if self._verdict is None:
            self.stop()
            with self._serve.client() as client:
                if any(topic.name == _WORK_TOPIC for topic in client.topics.list()):
                    client.topics.delete(_WORK_TOPIC, force=True)
                wait_for("everything is out", lambda: client.status().pending == 0)
                columns = ["id", "deliver_at", "lateness_ms", "via"]
                history = client.tables.history(_TOPIC, columns=columns)
            self._verdict = self._compare(history, self._metronome.stop())
        return self._verdict

    def _compare(self, history: pa.Table, beats: Beats) -> Verdict:
        ids = history["id"].to_pylist()
        late_ms = history["lateness_ms"].to_numpy()
        vias = np.array(history["via"].to_pylist())
        due_ms = history["deliver_at"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_numpy()
        counts = np.ones(len(ids), np.bool_)
        for outage in self._outages:
            counts &= ~outage.has(due_ms)
        by_fault = {}
        for name, span in self._faults.items():
            here = span.has(due_ms) & counts
            beats_here = beats[span.has(beats[:, 0].astype(np.int64)), 1]
            by_fault[name] = UnderFault(
                int(here.sum()),
                _p99(late_ms[here]),
                float(late_ms[here].max(initial=0)),
                _p99(beats_here),
                Counter(vias[here].tolist()),
            )
        return Verdict(
            lost=sorted(set(self._due_ms) - set(ids)),
            doubled=[id_ for id_, count in Counter(ids).items() if count > 1],
            early=[ids[row] for row in np.flatnonzero(late_ms < 0).tolist()],
            sent_count=len(self._due_ms),
            by_fault=by_fault,
        )


def _p99(values: np.ndarray) -> float:
    return float(np.percentile(values, 99)) if len(values) else 0.0
