"""Asks producers about open transactions, in order and with growing intervals.

Owns when a transaction is checked next, and where the next scan begins. A scan continues where the last one
stopped and skips transactions whose producers are not connected here, so these do not delay the others.

Invariants: a scan takes the writer's lock only briefly, and visits and checks a bounded number of
transactions, however many are open; the state kept of a transaction is dropped when it has ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tidemill.broker.broker import Broker
from tidemill.server.grpc.telemetry import Sessions
from tidemill.store.open_transactions import OpenHalf

_CHECK_AFTER_MS = 6_000
_CHECK_AGAIN_MS = 30_000
_CHECK_AGAIN_MS_MAX = 600_000
# Of one look.
_SCANNED_MAX = 5_000
_CHECKED_MAX = 200

_Key = tuple[int, str]  # topic and message


class CheckBacks:
    """The questions about open transactions. Lives on one event loop."""

    def __init__(
        self,
        broker: Broker,
        sessions: Sessions,
        owners: Mapping[tuple[str, str], str],
        call: Callable[..., Awaitable[Any]],
    ) -> None:
        self._broker = broker
        self._sessions = sessions
        self._owners = owners  # topic and message -> client that began its transaction
        self._call = call  # runs what may wait for a lock, beside the event loop
        self._asked: dict[_Key, tuple[int, int]] = {}  # when to check again, number of checks
        self._begins_at = 0  # where the next look does

    async def look(self) -> None:
        """Check the transactions that are due for it."""
        if not self._broker.store.open_transactions:
            self._asked.clear()
            return
        halves: list[OpenHalf] = await self._call(self._broker.transactions.halves)
        self._forget_ended(halves)
        now_ms = self._broker.clock.now_ms()
        for half in self._due(halves, now_ms):
            transaction = await self._call(self._broker.transactions.read, half)
            if transaction is None:
                continue
            owner = self._owners.get((transaction.topic, half.message_id))
            if self._sessions.ask_about(transaction, owner):
                times = self._asked.get(_key(half), (0, 0))[1] + 1
                again_ms = now_ms + min(_CHECK_AGAIN_MS * times, _CHECK_AGAIN_MS_MAX)
                self._asked[_key(half)] = (again_ms, times)

    def _forget_ended(self, halves: list[OpenHalf]) -> None:
        if len(self._asked) > 2 * len(halves):
            still_open = set(map(_key, halves))
            self._asked = {key: asked for key, asked in self._asked.items() if key in still_open}

    def _due(self, halves: list[OpenHalf], now_ms: int) -> list[OpenHalf]:
        """The transactions to check now, of the next ones in order."""
        due: list[OpenHalf] = []
        can_answer = self._sessions.who_can_check()
        for _ in range(min(len(halves), _SCANNED_MAX)):
            half = halves[self._begins_at % len(halves)]
            self._begins_at = (self._begins_at + 1) % len(halves)
            if self._waits(half, now_ms):
                continue
            topic = self._broker.store.topics.by_id(half.topic_id)
            if topic is None:
                continue
            if can_answer(topic.name, self._owners.get((topic.name, half.message_id))):
                due.append(half)
                if len(due) == _CHECKED_MAX:
                    break
        return due

    def _waits(self, half: OpenHalf, now_ms: int) -> bool:
        again_ms, _ = self._asked.get(_key(half), (0, 0))
        return half.stored_at_ms >= now_ms - _CHECK_AFTER_MS or again_ms > now_ms


def _key(half: OpenHalf) -> _Key:
    return half.topic_id, half.message_id
