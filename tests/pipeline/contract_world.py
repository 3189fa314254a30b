"""One broker on a simulated clock, and a plain list beside it of what must come out of it.

The contract of a runner: with any runner, the same input makes the same messages come out, in the
same order, at the same millisecond, with the same answers. `World` sends through the broker, notes what it
sent, and tells at the end what lies in the topics as plain values without ids, so that two worlds compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tidemill.broker.broker import Broker
from tidemill.core.clock import SimulatedClock
from tidemill.core.model import Draft, Handle, Via

QUEUES = 2
_ROUND_MS = 86_400_000


@dataclass(frozen=True)
class Sent:
    """A message that shall come out: in order of due time, then of sending."""

    due_ms: int
    order: int
    topic: str
    body: bytes
    handle: Handle


@dataclass
class World:
    broker: Broker
    name: str = ""
    start_ms: int = 0
    answers: list[Any] = field(default_factory=list)
    _expected: dict[bytes, Sent] = field(default_factory=dict)
    _topics: set[str] = field(default_factory=set)
    _order: int = 0

    def begin(self, name: str) -> World:
        """A scenario of its own, in topics of its own; begins at the next whole day of simulated time."""
        now_ms = self.broker.clock.now_ms()
        start_ms = -(-now_ms // _ROUND_MS) * _ROUND_MS
        self.broker.advance_to(start_ms)
        return World(self.broker, name, start_ms)

    # -- acting -----------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """Since the scenario began."""
        return self.broker.clock.now_ms() - self.start_ms

    def send(
        self, bodies_and_dues: Sequence[tuple[bytes, int]], *, topic: str = "t", **fields: Any
    ) -> list[Handle]:
        """Messages due so many ms after the scenario's begin."""
        name = self._topic(topic)
        drafts = [
            Draft(name, body, deliver_at_ms=self.start_ms + due_ms, **fields)
            for body, due_ms in bodies_and_dues
        ]
        return self._send(drafts, [due_ms for _, due_ms in bodies_and_dues])

    def send_on_levels(
        self, bodies_and_levels: Sequence[tuple[bytes, int]], delays_ms: Sequence[int], *, topic: str = "t"
    ) -> list[Handle]:
        """Messages that wait on delay levels, due as long from now as their level says."""
        name = self._topic(topic)
        drafts = [Draft(name, body, level=level) for body, level in bodies_and_levels]
        return self._send(drafts, [self.now_ms + delays_ms[level - 1] for _, level in bodies_and_levels])

    def _send(self, drafts: list[Draft], dues_ms: Sequence[int]) -> list[Handle]:
        handles = []
        for draft, due_ms, receipt in zip(drafts, dues_ms, self.broker.send(drafts), strict=True):
            assert receipt.handle is not None
            assert receipt.deliver_at_ms == self.start_ms + due_ms
            handles.append(receipt.handle)
            self.expect(draft.body, due_ms, receipt.handle)
        return handles

    def expect(self, body: bytes, due_ms: int, handle: Handle) -> None:
        self._order += 1
        self._expected[body] = Sent(self.start_ms + due_ms, self._order, handle.topic, body, handle)

    def cancel(self, handles: Sequence[Handle]) -> list[str]:
        answers = [answer.value for answer in self.broker.cancel(handles)]
        pairs = zip(handles, answers, strict=True)
        self.forget(*(handle for handle, answer in pairs if answer == "cancelled"))
        self.answers.append(answers)
        return answers

    def forget(self, *handles: Handle) -> None:
        """These shall not come out."""
        gone = {handle.id for handle in handles}
        self._expected = {body: sent for body, sent in self._expected.items() if sent.handle.id not in gone}

    def reschedule(self, handles: Sequence[Handle], to_ms: int) -> list[str]:
        moved = self.broker.reschedule(handles, deliver_at_ms=self.start_ms + to_ms)
        for handle, answer in zip(handles, moved, strict=True):
            if answer.handle is not None:
                (body,) = [body for body, sent in self._expected.items() if sent.handle.id == handle.id]
                self.expect(body, to_ms, answer.handle)
        answers = ["moved" if a.answer is None else a.answer.value for a in moved]
        self.answers.append(answers)
        return answers

    def advance_to(self, ms: int) -> None:
        """Since the scenario's begin."""
        self.broker.advance_to(self.start_ms + ms)
        self.answers.append([(p.topic, p.deliver_at_ms - self.start_ms) for p in self._pending()])

    def sleep_until(self, ms: int) -> None:
        """The clock leaps, and is read only then: as after a machine that was suspended."""
        clock = self.broker.clock
        assert isinstance(clock, SimulatedClock)
        clock.advance_to(self.start_ms + ms)
        self.advance_to(ms)

    def change_topic(self, topic: str, **changes: Any) -> None:
        self.broker.topics.change(self._topic(topic), **changes)

    def _pending(self) -> list[Any]:
        return [
            pending
            for topic in sorted(self._topics)
            for pending in self.broker.views.pending(topic_name=topic, limit=50)
        ]

    def _topic(self, topic: str) -> str:
        name = f"{self.name}-{topic}"
        if name not in self._topics:
            self.broker.topics.create(name, queue_count=QUEUES)
            self._topics.add(name)
        return name

    # -- what came out ----------------------------------------------------------------------------

    def came_out(self) -> Iterator[tuple[str, int, Any]]:
        for topic in sorted(self._topics):
            for queue_id in range(QUEUES):
                for queued in self.broker.views.read(topic, queue_id, 0, 1 << 40):
                    yield topic, queue_id, queued

    def check_exact(self, *, held_until: dict[str, int] | None = None) -> None:
        """What must come out did, once, in order of due time, at its millisecond (or its topic's)."""
        held = {self._topic(topic): self.start_ms + ms for topic, ms in (held_until or {}).items()}
        came = list(self.came_out())
        bodies = [queued.message.body for _, _, queued in came]
        assert sorted(bodies) == sorted(self._expected), "lost, doubled or cancelled in vain"
        last: dict[tuple[str, int], tuple[int, int]] = {}
        for topic, queue_id, queued in came:
            sent = self._expected[queued.message.body]
            assert topic == sent.topic
            due_ms = max(sent.due_ms, held.get(topic, 0))
            assert queued.released_at_ms == due_ms, (sent, queued)
            place = (sent.due_ms, sent.order)
            assert place > last.get((topic, queue_id), (0, 0)), "out of order"
            last[topic, queue_id] = place

    def vias(self) -> set[Via]:
        return {queued.via for _, _, queued in self.came_out()}

    def story(self) -> list[Any]:
        """Everything a user could see, without what must differ: ids, and when the scenario began."""
        rows = [
            (
                topic,
                queue_id,
                queued.offset,
                queued.message.body,
                queued.message.deliver_at_ms - self.start_ms,
                queued.released_at_ms - self.start_ms,
            )
            for topic, queue_id, queued in self.came_out()
        ]
        counts = [replace(view, name="") for view in self.broker.views.topics() if view.name in self._topics]
        return [rows, self.answers, counts]
