"""What one send will append, and what it answers meanwhile: worked out before anything is written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from tidemill.broker.send.tick_limit import Planned
from tidemill.core.errors import BusyError, RequestError
from tidemill.core.model import MessageType, SendResult, StoredMessage
from tidemill.store.upkeep.moving import MovedMessages

Answer = SendResult | RequestError | BusyError

# When a draft falls due (None: it is not timed), its level, a note for the result, and what it is.
Admitted = tuple[int | None, int, str, MessageType]


@dataclass(slots=True)
class PlannedSend:
    """What one send will append, and what it answers meanwhile."""

    answers: list[Answer | None]
    admitted: list[Admitted | None]  # what the check found out about each draft
    suspects: set[int] = field(default_factory=set)  # drafts whose id or once-key was perhaps stored before
    messages: list[StoredMessage] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)  # which answer each message fills
    notes: list[str] = field(default_factory=list)
    fresh_ids: dict[tuple[int, str], int] = field(default_factory=dict)  # ids of this batch -> message
    fresh_keys: dict[tuple[int, str], int] = field(default_factory=dict)  # keys of timed ones -> message
    repeats: list[tuple[int, int]] = field(default_factory=list)  # answers that repeat a message of the batch
    planned: Planned = field(default_factory=Counter)
    moves: dict[int, int] = field(default_factory=dict)  # seqs whose time is replaced -> new time
    moved: list[MovedMessages] = field(default_factory=list)  # the same, after it was done

    def fill_moved(self) -> None:
        """Let the results of messages whose time was replaced say where those are now."""
        now_at: dict[int, tuple[int, int]] = {}
        for part in self.moved:
            new_seqs = range(part.appended.first_seq, part.appended.first_seq + len(part.old_seqs))
            pairs = zip(new_seqs, part.deliver_at_ms.tolist(), strict=True)
            now_at.update(zip(part.old_seqs.tolist(), pairs, strict=True))
        for index, answer in enumerate(self.answers):
            if isinstance(answer, SendResult) and answer.handle is not None and answer.handle.seq in now_at:
                seq, due_ms = now_at[answer.handle.seq]
                handle = replace(answer.handle, seq=seq)
                self.answers[index] = replace(answer, handle=handle, deliver_at_ms=due_ms)
