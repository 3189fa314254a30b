"""The call that lists messages whose bytes in the broker's log are damaged, for both clients."""

from __future__ import annotations

from typing import TypeVar

from tidemill.client.answers import DamagedMessage
from tidemill.client.verbs import Call, get, known

T = TypeVar("T")


def damaged(limit: int) -> Call[list[DamagedMessage]]:
    def read(said: dict[str, list[dict[str, object]]]) -> list[DamagedMessage]:
        return [DamagedMessage(**known(DamagedMessage, fields)) for fields in said["damaged"]]

    return get("/v1/damaged", {"limit": limit}, read)


class DamageVerbs:
    """The method of `Client`."""

    def _ask(self, call: Call[T]) -> T:
        raise NotImplementedError

    def damaged(self, *, limit: int = 100) -> list[DamagedMessage]:
        """Messages whose bytes in the broker's log are damaged; they are not delivered."""
        return self._ask(damaged(limit))


class AsyncDamageVerbs:
    """The method of `AsyncClient`."""

    async def _ask(self, call: Call[T]) -> T:
        raise NotImplementedError

    async def damaged(self, *, limit: int = 100) -> list[DamagedMessage]:
        """Messages whose bytes in the broker's log are damaged; they are not delivered."""
        return await self._ask(damaged(limit))
