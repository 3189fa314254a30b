"""Send-back: a consumer gives a message back, to see it again after the delay of a level.

Owns the rule of the next attempt: which level or back-off it waits with, and when there is none left. The
message becomes a timed message of `%RETRY%group`, which is merged into what that group receives and into
nothing else; it waits, is listed, forecast and cancelled like any other. The frame that stores it settles
the delivery it takes the place of, so it is in exactly one of the two. In a FIFO queue nothing may pass it:
there it stays where it is, out of sight until its time.

    level 0      the group's back-off table; without one, level 2 + attempt (10s after the first)
    level n      that level
    level -1     dead letters, at once; also after the last attempt
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from tidemill.broker.admission import DEAD_LETTER_PREFIX, RETRY_PREFIX
from tidemill.broker.dead_letters import dead_letter, origin_name, retry_properties
from tidemill.broker.receipts import DeliveryName, decode_receipt, lane_held
from tidemill.broker.sending_verb import SendingVerb
from tidemill.core.arguments import require_kind, require_whole
from tidemill.core.levels import clamped_level, level_delays_ms
from tidemill.core.model import NO_TIME_MS, Handle, MessageType, StoredMessage
from tidemill.store.consumer_log import change_rows
from tidemill.store.consumer_state import ACT_CHANGE, Group, Lane
from tidemill.store.frames import Settlement
from tidemill.store.framing import framed
from tidemill.store.topics import Topic

_LEVEL_MAX = 1 << 31
_FIRST_LEVEL = 3


class SendBackAnswer(StrEnum):
    AGAIN = "again"  # it comes again
    DEAD = "dead"  # it is among the dead letters
    INVALID = "invalid"  # the receipt is no longer the valid one


@dataclass(frozen=True, slots=True)
class SentBack:
    """The answer to one send-back."""

    answer: SendBackAnswer
    deliver_at_ms: int = NO_TIME_MS
    handle: Handle | None = None  # to cancel or reschedule it by; none in a FIFO queue and for the dead
    note: str = ""


_INVALID = SentBack(SendBackAnswer.INVALID)


@dataclass(frozen=True, slots=True)
class _Given:
    """One delivery that is given back, as its receipt says."""

    group: Group
    topic: Topic
    lane: Lane
    name: DeliveryName

    @property
    def offset(self) -> int:
        return self.name.offset

    @property
    def attempt(self) -> int:
        return self.name.attempt

    def is_last(self, level: int) -> bool:
        return level < 0 or self.attempt >= self.group.attempts_max


class Retries(SendingVerb):
    """The send-back verb. Thread-safe."""

    def send_back(self, receipts: Sequence[str], level: int = 0) -> list[SentBack]:
        """Give deliveries back; says of each when it comes again, or that it is dead."""
        require_kind("what is given back", receipts, (list, tuple), "a list of receipts")
        require_whole("level", level, -1, _LEVEL_MAX)
        given = [self._given(decode_receipt(receipt)) for receipt in receipts]
        # Topics are made before the locks are taken: each is a frame of its own.
        targets = [self._target(g, level) if g is not None else None for g in given]
        now_ms = self._now_ms()
        consumers, writer = self._store.consumers, self._store.writer
        answers, moved, staying = [_INVALID] * len(given), [], []
        # The writer's lock before the consumers', as everywhere.
        with writer.lock, consumers.lock:
            for index, (g, target) in enumerate(zip(given, targets, strict=True)):
                message = self._held(g) if g is not None else None
                if g is None or message is None:
                    continue
                consumers.settling.add((g.lane, g.offset))
                if target is None:
                    staying.append((index, g, self._wait(g, level, now_ms)))
                else:
                    moved.append((index, g, self._stored(g, message, target, level, now_ms)))
            first_seq = self._store.indexes.ledger.next_seq
            self._append([(g, message) for _, g, (message, _) in moved], now_ms)
            end = self._stay([(g, wait[0]) for _, g, wait in staying], now_ms)
        writer.finish_written()
        consumers.wait(end)
        self._hand_over([message for _, _, (message, _) in moved], first_seq)
        writer.arrivals.announce()
        seq = first_seq
        for index, g, (message, note) in moved:
            answers[index] = self._answer(g, message, seq, note)
            seq += message.deliver_at_ms != NO_TIME_MS
            self._note_level(g, note)
        for index, g, (due_ms, _, note) in staying:
            answers[index] = SentBack(SendBackAnswer.AGAIN, due_ms, None, note)
            self._note_level(g, note)
        return answers

    def _note_level(self, given: _Given, note: str) -> None:
        if note:
            self._sender.clamped_levels.add(given.topic.name, note)

    # -- what a receipt means ---------------------------------------------------------------------

    def _given(self, name: DeliveryName) -> _Given | None:
        consumers, topics = self._store.consumers, self._store.indexes.topics
        with consumers.lock:
            lane = lane_held(name, consumers.state, topics)
            group, topic = consumers.state.group(name.group), topics.named(name.topic)
        return _Given(group, topic, lane, name) if lane and group and topic else None

    def _target(self, given: _Given, level: int) -> tuple[Topic, int] | None:
        """The queue that the message goes to; None: it stays in its own."""
        if given.is_last(level):
            letters = self._topics.find_or_create(DEAD_LETTER_PREFIX + given.group.name, is_internal=True)
            return letters, self._topics.choose_queue(letters, "")
        if given.group.is_fifo:
            return None
        if given.topic.name.startswith(RETRY_PREFIX):
            return given.topic, given.lane[2]
        return self._topics.retry_queue(given.group.name, given.topic)

    def _held(self, given: _Given) -> StoredMessage | None:
        """The message, if it is still out under this receipt and reads back. Call under both locks."""
        consumers = self._store.consumers
        lane = lane_held(given.name, consumers.state, self._store.indexes.topics)
        if lane != given.lane or (lane, given.offset) in consumers.settling:
            return None
        row = self._store.queues.read(given.lane[1:], given.offset, given.offset + 1)[0]
        place = int(row["place"])
        return None if self._store.is_expired(place) else self._store.readable(place)

    def _wait(self, given: _Given, level: int, now_ms: int) -> tuple[int, int, str]:
        """When the next attempt is due, the level it waits on, and a note for the answer."""
        if level == 0 and given.group.backoff:
            delays_ms = level_delays_ms(given.group.backoff)
            return now_ms + delays_ms[min(given.attempt, len(delays_ms)) - 1], 0, ""
        delays_ms = self._settings.level_delays_ms
        asked = level if level else min(_FIRST_LEVEL - 1 + given.attempt, len(delays_ms))
        used, note = clamped_level(asked, delays_ms)
        return now_ms + delays_ms[used - 1], used, note

    def _stored(
        self, given: _Given, message: StoredMessage, target: tuple[Topic, int], level: int, now_ms: int
    ) -> tuple[StoredMessage, str]:
        topic, queue_id = target
        origin = origin_name(message, given.topic)
        if given.is_last(level):
            return dead_letter(message, origin, topic.id, queue_id, given.attempt), ""
        due_ms, used, note = self._wait(given, level, now_ms)
        stored = replace(
            message,
            topic_id=topic.id,
            queue_id=queue_id,
            type=MessageType.DELAY,
            level=used,
            flags=self._sender.flags(MessageType.DELAY, due_ms, now_ms, used),
            stored_at_ms=now_ms,
            deliver_at_ms=due_ms,
            properties=retry_properties(message, origin, given.attempt),
        )
        return stored, note

    # -- storing ----------------------------------------------------------------------------------

    def _append(self, rows: Sequence[tuple[_Given, StoredMessage]], now_ms: int) -> None:
        """Append the messages, in as many frames as they need. Call under both locks."""
        done = 0
        try:
            for part in framed([message for _, message in rows]):
                settles = [
                    Settlement(g.group.name, g.lane[1], g.lane[2], g.offset)
                    for g, _ in rows[done : done + len(part)]
                ]
                self._store.writer.send_back(part, settles, now_ms)
                done += len(part)
        finally:
            for g, _ in rows[done:]:
                self._store.consumers.settling.discard((g.lane, g.offset))

    def _stay(self, rows: Sequence[tuple[_Given, int]], now_ms: int) -> int:
        """Put off what stays in its queue. Call under both locks."""
        consumers, end = self._store.consumers, 0
        for g, due_ms in rows:
            consumers.settling.discard((g.lane, g.offset))
            put_off = change_rows(ACT_CHANGE, g.lane, [g.offset], g.name.number, due_ms)
            end = consumers.append(put_off, now_ms)
        return end

    def _hand_over(self, messages: Sequence[StoredMessage], first_seq: int) -> None:
        timed = [m for m in messages if m.deliver_at_ms != NO_TIME_MS]
        due = np.array([m.deliver_at_ms for m in timed], np.int64)
        self._sender.hand_over(due, first_seq, np.array([m.flags for m in timed], np.int64))

    def _answer(self, given: _Given, message: StoredMessage, seq: int, note: str) -> SentBack:
        if message.deliver_at_ms == NO_TIME_MS:
            return SentBack(SendBackAnswer.DEAD)
        handle = Handle(self._broker_id, RETRY_PREFIX + given.group.name, message.id, seq)
        return SentBack(SendBackAnswer.AGAIN, message.deliver_at_ms, handle, note)
