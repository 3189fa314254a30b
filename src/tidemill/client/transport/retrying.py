"""When to retry, and how long to wait before: pure rules, shared by threads and tasks.

A request may be retried when nothing can have happened twice by it: the connection was lost (sends carry ids
made by the client, so does each cancel and reschedule, and a repeat is recognised), the broker is busy (429),
starting or closing (503). Waits grow from 10 ms to 2 s, each reduced by up to half at random so that many
clients do not retry at the same moment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidemill.core.clock import stopwatch_s
from tidemill.core.errors import BusyError, DiskFullError, TidemillError, error_of

_FIRST_WAIT_S = 0.01
_LONGEST_WAIT_S = 2.0
_REFUSED_FOR_NOW = frozenset((429, 503))
# For so long a request is repeated that its id alone keeps from being carried out twice: the broker keeps the
# id for an hour, and the last attempt takes time as well.
_REQUEST_ID_KEPT_S = 3_000.0
_LOST_ON_THE_WAY = frozenset((502, 504))  # a proxy's: the broker may have done it all the same


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a client keeps trying before it gives up."""

    give_up_after_s: float = 30.0
    is_on: bool = True

    def wait_s(self, attempt: int, spent_s: float) -> float | None:
        """How long to wait before attempt `attempt` + 1 (the first is 0); None: give up."""
        wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(attempt, 20))
        wait_s *= 1 - os.urandom(1)[0] / 512
        return wait_s if self.is_on and spent_s + wait_s < self.give_up_after_s else None


class Patience:
    """One caller's tries under a policy: how long to wait before the next, or None: it has waited enough."""

    def __init__(self, policy: RetryPolicy, *, has_request_id: bool = False) -> None:
        kept_s = min(policy.give_up_after_s, _REQUEST_ID_KEPT_S)
        self._policy = replace(policy, give_up_after_s=kept_s) if has_request_id else policy
        self._began_s = stopwatch_s()
        self._attempt = 0

    def wait_s(self) -> float | None:
        wait_s = self._policy.wait_s(self._attempt, stopwatch_s() - self._began_s)
        self._attempt += 1
        return wait_s


def busy_ones(answers: Sequence[object]) -> list[int]:
    """Which messages were refused for now only. A full disk needs a person, and is not waited for."""
    return [
        index
        for index, answer in enumerate(answers)
        if isinstance(answer, BusyError) and not isinstance(answer, DiskFullError)
    ]


def is_worth_a_retry(status: int, *, is_repeatable: bool) -> bool:
    return status in _REFUSED_FOR_NOW or (is_repeatable and status in _LOST_ON_THE_WAY)


def error_in(status: int, content: bytes) -> TidemillError:
    """The error that an answer other than 2xx stands for."""
    try:
        said = json.loads(content)
        return error_of(str(said["code"]), str(said["message"]))
    except (ValueError, KeyError, TypeError):
        text = content[:200].decode(errors="replace").strip()
        return TidemillError(_without_words(status, text))


def _without_words(status: int, text: str) -> str:
    """What to say of an answer that is not the broker's own: a fault of its, or a proxy's in between."""
    said = f" ({text})" if text else ""
    if status >= 500:
        return (
            f"the broker, or a proxy before it, failed with HTTP status {status}{said}; whether the request "
            "was carried out is not known; see the broker's log"
        )
    return f"HTTP status {status}{said} is no answer of a broker; check the endpoint"
