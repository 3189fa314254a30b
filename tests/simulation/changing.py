"""Cancelling and rescheduling: by handle, by key, by range of time. Every answer must be true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulation.model import Broken, Message
from simulation.world import KEYS, SPANS_MS, World
from tidemill.core.errors import DiskFull
from tidemill.core.model import CancelAnswer


@dataclass
class Changing:
    """The acts of those who change their mind."""

    world: World

    def _some_handled(self) -> list[Message]:
        known = self.world.model.handled()
        recent = known[-15:]
        chosen = [
            self.world.random.choice(known if self.world.random.random() < 0.3 else recent) for _ in range(3)
        ]
        return chosen[: self.world.random.choice((1, 1, 3))]

    def _expected(self, message: Message, cut: bool) -> set[CancelAnswer]:
        if message.is_pending:
            return {CancelAnswer.CANCELLED}
        unknown = {CancelAnswer.UNKNOWN} if cut else set()
        if message.is_cancelled:
            return {CancelAnswer.ALREADY_CANCELLED} | unknown
        return {CancelAnswer.RELEASED} | unknown

    def cancel_handles(self) -> None:
        if not self.world.model.handled():
            return
        messages = self._some_handled()
        expected = [self._expected(m, self.world.model.has_cut) for m in messages]
        waiting = [m for m in messages if m.is_pending]
        for message in waiting:
            message.is_cancelled = None
        answers = self.world.broker.cancel([self.world.random.choice(m.handles) for m in messages])
        done: set[bytes] = set()
        for message, answer, allowed in zip(messages, answers, expected, strict=True):
            if message.body in done:
                allowed = {CancelAnswer.ALREADY_CANCELLED}
            if answer not in allowed:
                raise Broken(f"cancel of {message} says {answer}, expected {allowed}")
            if answer is CancelAnswer.CANCELLED:
                message.is_cancelled = True
                done.add(message.body)

    def _cancel_all(self, waiting: list[Message], act: Callable[[], int]) -> None:
        for message in waiting:
            message.is_cancelled = None
        count = act()
        if count != len(waiting):
            raise Broken(f"{count} were cancelled, {len(waiting)} waited: {waiting}")
        for message in waiting:
            message.is_cancelled = True

    def cancel_key(self) -> None:
        topic, key = self.world.some_topic(), self.world.random.choice(KEYS)
        if topic is not None:
            self._cancel_all(
                self.world.model.pending(topic, key), lambda: self.world.broker.cancel_key(topic, key)
            )

    def _range(self) -> tuple[int, int]:
        first = self.world.now_ms + self.world.random.choice(SPANS_MS)
        return first, first + self.world.random.choice((1_000, 20_000, 500_000))

    def cancel_range(self) -> None:
        topic = self.world.some_topic()
        if topic is not None:
            low, high = self._range()
            waiting = [m for m in self.world.model.pending(topic) if low <= m.due_ms < high]
            self._cancel_all(waiting, lambda: self.world.broker.cancel_range(topic, low, high))

    def _time(self) -> dict[str, int]:
        span = self.world.random.choice(SPANS_MS)
        if self.world.random.random() < 0.5:
            return {"by_ms": span}
        return {"deliver_at_ms": max(0, self.world.now_ms + span)}

    def _new_due(self, message: Message, time: dict[str, int]) -> int:
        return max(0, message.due_ms + time["by_ms"] if "by_ms" in time else time["deliver_at_ms"])

    def reschedule_handles(self) -> None:
        if not self.world.model.handled():
            return
        messages = list({m.body: m for m in self._some_handled()}.values())
        time = self._time()
        expected = [self._expected(m, self.world.model.has_cut) for m in messages]
        plans = {m.body: (m.due_ms, self._new_due(m, time)) for m in messages if m.is_pending}
        for message in messages:
            if message.body in plans:
                message.dues = set(plans[message.body])
        try:
            results = self.world.broker.reschedule(
                [self.world.random.choice(m.handles) for m in messages], **time
            )
        except DiskFull:
            self._take_back(plans)
            return
        for message, result, allowed in zip(messages, results, expected, strict=True):
            if message.body not in plans:
                if result.answer not in allowed:
                    raise Broken(f"reschedule of {message} says {result}, expected {allowed}")
                continue
            new_due = plans[message.body][1]
            if result.answer is not None or result.handle is None or result.deliver_at_ms != new_due:
                raise Broken(f"reschedule of {message} to {new_due} says {result}")
            message.dues, message.turn, message.level_delay_ms = {new_due}, self.world.model.turn, 0
            message.handles.append(result.handle)

    def _take_back(self, plans: dict[bytes, tuple[int, int]]) -> None:
        if not self.world.is_full:
            raise Broken("a reschedule was refused for want of room, and there is room")
        for body, (old_due, _) in plans.items():
            self.world.model.messages[body].dues = {old_due}

    def _reschedule_all(self, waiting: list[Message], act: Callable[..., int], time: dict[str, int]) -> None:
        plans = {m.body: (m.due_ms, self._new_due(m, time)) for m in waiting}
        for message in waiting:
            message.dues = set(plans[message.body])
        try:
            count = act(**time)
        except DiskFull:
            self._take_back(plans)
            return
        if count != len(waiting):
            raise Broken(f"{count} were moved, {len(waiting)} waited")
        for message in waiting:
            message.dues, message.turn = {plans[message.body][1]}, self.world.model.turn
            message.level_delay_ms = 0

    def reschedule_key(self) -> None:
        topic, key = self.world.some_topic(), self.world.random.choice(KEYS)
        if topic is not None:
            waiting = self.world.model.pending(topic, key)
            self._reschedule_all(
                waiting, lambda **time: self.world.broker.reschedule_key(topic, key, **time), self._time()
            )

    def reschedule_range(self) -> None:
        topic = self.world.some_topic()
        if topic is not None:
            low, high = self._range()
            waiting = [m for m in self.world.model.pending(topic) if low <= m.due_ms < high]
            self._reschedule_all(
                waiting,
                lambda **time: self.world.broker.reschedule_range(topic, low, high, **time),
                self._time(),
            )
