"""Moving messages: appending them again under new seqs, for another time or away from the log's head.

Owns how a move is cut into frames, and which flags a message has afterwards. Call under the writer lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tidemill.core.model import NO_OFFSET, StoredMessage
from tidemill.log.arrays import I64
from tidemill.store.commit_log import Appended
from tidemill.store.formats.entry_format import FLAG_FIFO, FLAG_MOVED, FLAG_NEAR, FLAG_PAST
from tidemill.store.formats.frames import ReEnterReason
from tidemill.store.formats.framing import move_payload_bytes, moved_together
from tidemill.store.formats.request_format import Request
from tidemill.store.message_store import MessageStore
from tidemill.store.original_order import arrivals_of, named_arrival

Bounds = tuple[int, int]  # where a part of the messages to be moved begins and ends


@dataclass(frozen=True, slots=True)
class MovedMessages:
    """Messages under their new seqs `appended.first_seq` and on, in the order they were asked for."""

    appended: Appended
    old_seqs: I64
    deliver_at_ms: I64
    flags: I64

    @property
    def seqs(self) -> I64:
        return self.appended.first_seq + np.arange(len(self.old_seqs))


def move_bounds(store: MessageStore, seqs: I64) -> list[Bounds]:
    """The parts in which these messages move: one frame each."""
    return list(moved_together(store.entries.take(seqs)["size"]))


def move_payloads(store: MessageStore, seqs: I64, bounds: Sequence[Bounds]) -> list[int]:
    """At most how many payload bytes the frames of these parts have."""
    sizes = store.entries.take(seqs)["size"]
    return [move_payload_bytes(sizes[start:end]) for start, end in bounds]


def re_enter(
    store: MessageStore,
    seqs: I64,
    deliver_at_ms: I64,
    reason: ReEnterReason,
    near_below_ms: int,
    now_ms: int,
    request: Request | None = None,
) -> MovedMessages:
    """Append pending messages again under new seqs and times, in one frame. All must read back."""
    rows = store.entries.take(seqs)
    keeps_arrival = reason is ReEnterReason.RETENTION
    flags = rows["flags"].astype(np.int64) & FLAG_FIFO | np.where(deliver_at_ms < near_below_ms, FLAG_NEAR, 0)
    flags |= FLAG_MOVED if keeps_arrival else np.where(deliver_at_ms < now_ms, FLAG_PAST, 0)
    messages = [
        _moved(store.message(place), due, flag)
        for place, due, flag in zip(
            rows["place"].tolist(), deliver_at_ms.tolist(), flags.tolist(), strict=True
        )
    ]
    arrivals = [NO_OFFSET] * len(seqs)
    if keeps_arrival:
        arrivals = named_arrival(arrivals_of(store.readable_section, seqs, rows)).tolist()
    with store.write() as tx:
        appended = tx.re_enter(seqs, messages, reason, now_ms, arrivals, request)
    return MovedMessages(appended, seqs, deliver_at_ms, flags)


def reschedule(
    store: MessageStore,
    seqs: I64,
    deliver_at_ms: I64,
    bounds: Sequence[Bounds],
    near_below_ms: int,
    now_ms: int,
    requests: Sequence[Request | None] = (),
) -> list[MovedMessages]:
    """Reschedule pending messages, a frame for each part; `requests` has the request of each, if any.

    The caller has reserved space for all of them.
    """
    return [
        re_enter(
            store,
            seqs[start:end],
            deliver_at_ms[start:end],
            ReEnterReason.RESCHEDULE,
            near_below_ms,
            now_ms,
            request,
        )
        for (start, end), request in zip(bounds, requests or [None] * len(bounds), strict=True)
    ]


def _moved(message: StoredMessage, deliver_at_ms: int, flags: int) -> StoredMessage:
    """A message as it re-enters: same id and bytes, its new time, no longer on a level."""
    return replace(message, deliver_at_ms=deliver_at_ms, flags=flags, level=0)
