"""Leases that the broker renews: a push consumer sets no invisibility time, it only has to stay connected.

Owns which deliveries are held by which push client, and when each client was last seen. While the client is
alive its leases are renewed; when it terminates or is silent for too long, its messages become visible again.
Kept in memory only: after a restart a lease simply ends, and the message is delivered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LEASE_MS = 60_000
_RENEW_AHEAD_MS = 25_000
_HELD_MS_MAX = 3 * 3_600_000
_SILENCE_MS_MAX = 75_000  # clients call every 10 s, some every 30 s


@dataclass(slots=True)
class _Lease:
    client_id: str
    since_ms: int
    ends_ms: int


@dataclass(frozen=True, slots=True)
class Due:
    """What a look at the leases found."""

    renew: Sequence[str]
    lost: Sequence[str]


class Leases:
    """Deliveries held by push clients. Lives on one event loop; times are of the boot clock."""

    def __init__(self) -> None:
        self._leases: dict[str, _Lease] = {}
        self._seen_ms: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def seen(self, client_id: str, now_ms: int) -> None:
        self._seen_ms[client_id] = now_ms

    def add(self, ack_tokens: Iterable[str], client_id: str, now_ms: int) -> None:
        for ack_token in ack_tokens:
            self._leases[ack_token] = _Lease(client_id, now_ms, now_ms + LEASE_MS)

    def holds(self, ack_token: str) -> bool:
        return ack_token in self._leases

    def drop(self, ack_tokens: Iterable[str]) -> None:
        for ack_token in ack_tokens:
            self._leases.pop(ack_token, None)

    def forget_client(self, client_id: str) -> list[str]:
        """A client is gone: its ack tokens, no longer held."""
        self._seen_ms.pop(client_id, None)
        ack_tokens = [ack_token for ack_token, lease in self._leases.items() if lease.client_id == client_id]
        self.drop(ack_tokens)
        return ack_tokens

    def due(self, now_ms: int) -> Due:
        """Leases to renew now, and those whose client has fallen silent or holds them far too long."""
        for client_id in [c for c, at_ms in self._seen_ms.items() if now_ms - at_ms > _SILENCE_MS_MAX]:
            del self._seen_ms[client_id]
        renew: list[str] = []
        lost: list[str] = []
        for ack_token, lease in self._leases.items():
            if lease.client_id not in self._seen_ms:
                lost.append(ack_token)
            elif lease.ends_ms - now_ms < _RENEW_AHEAD_MS and now_ms - lease.since_ms < _HELD_MS_MAX:
                lease.ends_ms = now_ms + LEASE_MS
                renew.append(ack_token)
        self.drop(lost)
        self.drop([token for token, lease in self._leases.items() if lease.ends_ms <= now_ms])
        return Due(renew, lost)
