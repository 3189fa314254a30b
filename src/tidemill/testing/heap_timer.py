"""The simplest timer that is obviously right: a heap of (due, seq).

For tests: run it beside the real timer on the same input and compare. Public, because the author of a
timer store or of a runner needs the same oracle.

    timer = HeapTimer()
    timer.add(seq=1, deliver_at_ms=500)
    timer.add(seq=2, deliver_at_ms=200)
    timer.advance(until_ms=500)     # [(200, 2)]: everything due before 500
    timer.advance(until_ms=501)     # [(500, 1)]

Invariant: a seq comes out once, in the first `advance` past its due time, in the order (due, seq).
"""

from __future__ import annotations

import heapq


class HeapTimer:
    """Timers in memory. A seq is added once; cancelled or rescheduled only while it waits."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._due: dict[int, int] = {}  # the truth; the heap may hold outdated pairs

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, seq: int) -> bool:
        return seq in self._due

    def add(self, seq: int, deliver_at_ms: int) -> None:
        """Let `seq` come out when its time has come, at the next `advance` if it already has."""
        assert seq not in self._due, f"seq {seq} is waiting already"
        self._due[seq] = deliver_at_ms
        heapq.heappush(self._heap, (deliver_at_ms, seq))

    def cancel(self, seq: int) -> bool:
        """Forget `seq`; False if it was not waiting."""
        return self._due.pop(seq, None) is not None

    def reschedule(self, seq: int, deliver_at_ms: int) -> bool:
        """Give `seq` another due time; False if it was not waiting."""
        if not self.cancel(seq):
            return False
        self.add(seq, deliver_at_ms)
        return True

    def next_due_ms(self) -> int | None:
        """The earliest due time of all that wait."""
        self._forget_outdated()
        return self._heap[0][0] if self._heap else None

    def advance(self, until_ms: int) -> list[tuple[int, int]]:
        """Everything due before `until_ms`, as (due, seq) in that order."""
        came: list[tuple[int, int]] = []
        self._forget_outdated()
        while self._heap and self._heap[0][0] < until_ms:
            deliver_at_ms, seq = heapq.heappop(self._heap)
            del self._due[seq]
            came.append((deliver_at_ms, seq))
            self._forget_outdated()
        return came

    def _forget_outdated(self) -> None:
        """Drop pairs at the top that were cancelled or given another time."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
