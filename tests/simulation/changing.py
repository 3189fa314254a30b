"""Cancelling and rescheduling: by handle, by key, by range of time. Every answer must be true.

Each request has an id. One whose answer a crash swallowed is asked again in the next life, and one that was
answered is now and then asked again at once: either way the answer must be the one of the first time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulation.model import Broken, Message
from simulation.world import KEYS, SPANS_MS, World
from tidemill.core.answers import Moved
from tidemill.core.errors import DiskFullError
from tidemill.core.model import CancelAnswer
from tidemill.testing import FaultPlan, FaultyDisk, SimulatedCrash

_AGAIN = 0.3  # how often an answered request is asked again


@dataclass
class Request:
    """One cancel or reschedule: how to ask, what is in doubt meanwhile, and what the answer must be."""

    ask: Callable[[str], Any]
    doubt: Callable[[], None]
    settle: Callable[[Any], None]
    id: str
    asked_at_ms: int


@dataclass
class Changing:
    """The acts of those who change their mind."""

    world: World
    crash_chance: float = 0.0  # of a crash in the middle of a request, and of one before its answer is read
    count: int = 0
    retried: int = 0
    lost: Request | None = None  # no answer came

    def _request(
        self, ask: Callable[[str], Any], doubt: Callable[[], None], settle: Callable[[Any], None]
    ) -> None:
        self.count += 1
        self.lost = Request(ask, doubt, settle, f"request-{self.count}", self.world.now_ms)
        self._carry_out(self.lost)

    def retry_lost(self) -> bool:
        """Ask again what was not answered, before anything else is done; True if there was something."""
        request = self.lost
        if request is None:
            return False
        # Its frame may have been cut since, or be more than an hour old.
        if not 0 <= self.world.now_ms - request.asked_at_ms < 2 * self.world.look_every_ms:
            self.lost = None
            return False
        self.retried += 1
        self._carry_out(request)
        return True

    def _carry_out(self, request: Request) -> None:
        request.doubt()
        random, broker = self.world.random, self.world.broker
        if random.random() < self.crash_chance:
            assert isinstance(broker.disk, FaultyDisk)
            broker.disk.arm(FaultPlan(crash_at=random.randrange(1, 5), crash_after=random.random() < 0.5))
        answer = request.ask(request.id)
        if random.random() < self.crash_chance:
            raise SimulatedCrash("before an answer was read")
        self.lost = None
        request.settle(answer)
        if self.world.random.random() < _AGAIN and not isinstance(answer, DiskFullError):
            end = self.world.broker.store.log.written_end
            again = request.ask(request.id)
            if again != answer or self.world.broker.store.log.written_end != end:
                raise Broken(f"{request.id} was answered {answer}, and asked again {again}")

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
        waiting = {m.body for m in messages if m.is_pending}
        handles = [self.world.random.choice(m.handles) for m in messages]

        def settle(answers: list[CancelAnswer]) -> None:
            done: set[bytes] = set()
            for message, answer, allowed in zip(messages, answers, expected, strict=True):
                if message.body in done:
                    allowed = {CancelAnswer.ALREADY_CANCELLED}
                elif message.body in waiting and message.seen is not None:
                    allowed = {CancelAnswer.RELEASED}  # in the time between crash and retry
                if answer not in allowed:
                    raise Broken(f"cancel of {message} says {answer}, expected {allowed}")
                if answer is CancelAnswer.CANCELLED:
                    message.is_cancelled = True
                    done.add(message.body)

        self._request(
            lambda request_id: self.world.broker.cancel(handles, request_id=request_id),
            lambda: _doubt([m for m in messages if m.body in waiting]),
            settle,
        )

    def _cancel_all(self, waiting: list[Message], act: Callable[[str], int]) -> None:
        def settle(count: int) -> None:
            cancelled = [m for m in waiting if m.seen is None]
            if count != len(cancelled):
                raise Broken(f"{count} were cancelled, {len(cancelled)} waited: {waiting}")
            for message in cancelled:
                message.is_cancelled = True

        self._request(act, lambda: _doubt(waiting), settle)

    def cancel_key(self) -> None:
        topic, key = self.world.some_topic(), self.world.random.choice(KEYS)
        if topic is not None:
            self._cancel_all(
                self.world.model.pending(topic, key),
                lambda request_id: self.world.broker.cancel_where(topic, key=key, request_id=request_id),
            )

    def _range(self) -> tuple[int, int]:
        first = self.world.now_ms + self.world.random.choice(SPANS_MS)
        return first, first + self.world.random.choice((1_000, 20_000, 500_000))

    def cancel_range(self) -> None:
        topic = self.world.some_topic()
        if topic is not None:
            low, high = self._range()
            waiting = [m for m in self.world.model.pending(topic) if low <= m.due_ms < high]
            self._cancel_all(
                waiting,
                lambda request_id: self.world.broker.cancel_where(
                    topic, from_ms=low, to_ms=high, request_id=request_id
                ),
            )

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
        handles = [self.world.random.choice(m.handles) for m in messages]
        moving = _Moving(
            self.world, {m.body: (m.due_ms, self._new_due(m, time)) for m in messages if m.is_pending}
        )

        def settle(results: list[Moved] | DiskFullError) -> None:
            if isinstance(results, DiskFullError):
                moving.take_back()
                return
            for message, result, allowed in zip(messages, results, expected, strict=True):
                if message.body in moving.plans and not moving.went_as_it_was(message):
                    new_due = moving.plans[message.body][1]
                    if result.answer is not None or result.handle is None or result.deliver_at_ms != new_due:
                        raise Broken(f"reschedule of {message} to {new_due} says {result}")
                    moving.moved(message)
                    message.handles.append(result.handle)
                else:
                    allowed = {CancelAnswer.RELEASED} if message.body in moving.plans else allowed
                    if result.answer not in allowed:
                        raise Broken(f"reschedule of {message} says {result}, expected {allowed}")

        self._request(
            lambda request_id: _unless_full(
                lambda: self.world.broker.reschedule(handles, request_id=request_id, **time)
            ),
            moving.doubt,
            settle,
        )

    def _reschedule_all(self, waiting: list[Message], act: Callable[..., int], time: dict[str, int]) -> None:
        moving = _Moving(self.world, {m.body: (m.due_ms, self._new_due(m, time)) for m in waiting})

        def settle(count: int | DiskFullError) -> None:
            if isinstance(count, DiskFullError):
                moving.take_back()
                return
            moved = [m for m in waiting if not moving.went_as_it_was(m)]
            if count != len(moved):
                raise Broken(f"{count} were moved, {len(moved)} waited")
            for message in moved:
                moving.moved(message)

        self._request(
            lambda request_id: _unless_full(lambda: act(request_id=request_id, **time)), moving.doubt, settle
        )

    def reschedule_key(self) -> None:
        topic, key = self.world.some_topic(), self.world.random.choice(KEYS)
        if topic is not None:
            waiting = self.world.model.pending(topic, key)
            self._reschedule_all(
                waiting, lambda **how: self.world.broker.reschedule_where(topic, key=key, **how), self._time()
            )

    def reschedule_range(self) -> None:
        topic = self.world.some_topic()
        if topic is not None:
            low, high = self._range()
            waiting = [m for m in self.world.model.pending(topic) if low <= m.due_ms < high]
            self._reschedule_all(
                waiting,
                lambda **how: self.world.broker.reschedule_where(topic, from_ms=low, to_ms=high, **how),
                self._time(),
            )


class _Moving:
    """Messages that a request moves, each from one due time to another."""

    def __init__(self, world: World, plans: dict[bytes, tuple[int, int]]) -> None:
        self._world = world
        self.plans = plans
        self._known: dict[bytes, set[int]] = {}  # what is known of each, should the request be refused

    def _messages(self) -> list[Message]:
        return [self._world.model.messages[body] for body in self.plans]

    def doubt(self) -> None:
        for message in self._messages():
            if message.seen is None:
                self._known[message.body] = message.dues
                old_due, new_due = self.plans[message.body]
                # One that an earlier attempt has moved stays where it is.
                message.dues = message.dues if message.dues == {new_due} else {old_due, new_due}
                message.is_turn_known = False

    def went_as_it_was(self, message: Message) -> bool:
        """True when it was released before it was moved, in the time between crash and retry."""
        old_due, new_due = self.plans[message.body]
        return message.seen is not None and message.dues == {old_due} and old_due != new_due

    def moved(self, message: Message) -> None:
        if message.seen is None:
            message.dues, message.turn = {self.plans[message.body][1]}, self._world.model.turn
            message.level_delay_ms, message.is_turn_known = 0, True

    def take_back(self) -> None:
        if not self._world.is_full:
            raise Broken("a reschedule was refused for lack of space, and there is space")
        for message in self._messages():
            message.dues = self._known.get(message.body, message.dues)
            message.is_turn_known = True


def _doubt(messages: list[Message]) -> None:
    """A cancel of those that wait is under way."""
    for message in messages:
        if message.is_pending:
            message.is_cancelled = None


def _unless_full(act: Callable[[], Any]) -> Any:
    """The answer; a refusal for lack of space is one as well."""
    try:
        return act()
    except DiskFullError as refusal:
        return refusal
