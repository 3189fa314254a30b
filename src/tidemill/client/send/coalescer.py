"""Joins the sends of many threads into one request: the first caller leads, the others follow.

There is no thread of its own. A caller that finds a free lane becomes its leader: it takes everything that
waits, sends it as one request, gives each caller its answer, and passes the lane to one of those that came
meanwhile. So a single caller pays nothing, neither a thread switch nor a wait, and many callers share large
requests. A few callers have a second lane, so that none waits for another's answer; more of them use one,
because one large request costs the broker half of what two of half its size do; and very many have two again,
each of which is woken and makes its next request while the broker stores the other's. When the last request
was shared by many, they come back within microseconds of each other; the next leader waits for them, but
never longer than the linger.

Callers with answers are woken one after the other, each by the one before it: many woken at once would only
queue again, for the interpreter lock.

The main thread sends alone. There a signal's handler may raise between any two steps (Ctrl-C, a time limit),
and a half-done step would lose the others' sends; so it shares nothing with them.

Invariants: every caller gets exactly one answer; none waits while no request is in flight. When an exception
is raised into the leader's thread, its lane is not lost: the sends that shared its request are sent again by
another leader, which ids make harmless, and those behind it are woken all the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import Final

from tidemill.client.send.request_limits import BYTES_MAX, MESSAGES_MAX, weight_of
from tidemill.core.errors import TidemillError
from tidemill.core.model import Draft
from tidemill.core.send_answers import Answer
from tidemill.core.splitting import first_part

LINGER_S: Final = 0.002
LANES: Final = 2
_FEW: Final = 8  # fewer callers use all lanes, and so do
_CROWD: Final = 28  # so many or more; numbers between use one

SendBatch = Callable[[Sequence[Draft]], Sequence[Answer]]


class _Waiter:
    """A caller that waits for its answer, or to become the leader."""

    __slots__ = ("answer", "batch", "draft", "fault", "following", "has_left", "leads", "lock")

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.answer: Answer | None = None
        self.fault: TidemillError | None = None
        self.leads = False  # it has a lane
        self.batch: Sequence[_Waiter] = ()  # a leader and the callers of its request
        self.following: _Waiter | None = None  # the waiter to wake next
        self.has_left = False  # it was interrupted
        self.lock = threading.Lock()
        self.lock.acquire()

    @property
    def waits(self) -> bool:
        return self.answer is None and self.fault is None and not self.has_left


class Coalescer:
    """Joins concurrent sends. Thread-safe."""

    def __init__(self, send_batch: SendBatch, *, linger_s: float = LINGER_S, lanes: int = LANES) -> None:
        self._send_batch = send_batch
        self._linger_s = min(linger_s, LINGER_S)
        self._lanes = lanes
        self._main_thread = threading.main_thread().ident
        self._lock = threading.Lock()  # protects everything below
        self._waiting: list[_Waiter] = []  # callers that do not lead
        self._free_lanes = lanes
        self._in_flight = 0  # callers whose request is in flight
        self._is_crowd = False  # there were many when the last request was answered
        self._expected = 1  # how many callers the next request is likely to have
        self._lingering: _Waiter | None = None  # a leader that waits for more callers

    def send(self, draft: Draft) -> Answer:
        """The answer to one send: its result or its error. Raises if the request failed."""
        if threading.get_ident() == self._main_thread:
            return self._send_batch([draft])[0]
        waiter = _Waiter(draft)
        try:
            if not self._takes_a_lane(waiter):
                waiter.lock.acquire()
                _wake_following(waiter)
            if waiter.answer is None and waiter.fault is None:
                self._lead(waiter)
                waiter.batch = ()  # a reference cycle: it would keep the others alive
        except BaseException:
            self._leave(waiter)
            raise
        if waiter.fault is not None:
            try:
                raise waiter.fault
            finally:
                del waiter  # and with it what is raised, which holds this frame
        assert waiter.answer is not None
        return waiter.answer

    def _takes_a_lane(self, waiter: _Waiter) -> bool:
        """Whether the caller leads; if not, it is among those who wait."""
        with self._lock:
            is_open = self._free_lanes > 0 and self._lingering is None
            if is_open and (self._in_flight < _FEW or self._is_crowd):
                self._free_lanes -= 1
                waiter.leads = True
                return True
            self._waiting.append(waiter)
            # The lingering leader itself counts too.
            if self._lingering is not None and len(self._waiting) + 1 >= self._expected:
                self._lingering.lock.release()
                self._lingering = None
        return False

    def _lead(self, leader: _Waiter) -> None:
        batch = self._gather(leader)
        try:
            answers = self._send_batch([waiter.draft for waiter in batch])
        except TidemillError as fault:  # of the request, so of every caller in it
            self._pass_on(leader)
            fault.with_traceback(None)  # which leads here, and so to all of them
            for waiter in batch:
                waiter.fault = fault
        else:
            self._pass_on(leader)
            for waiter, answer in zip(batch, answers, strict=True):
                waiter.answer = answer
        _wake_in_order(batch)

    def _gather(self, leader: _Waiter) -> list[_Waiter]:
        """The leader and the callers of its request, after waiting for those that are likely to come."""
        with self._lock:
            lingers = len(self._waiting) + 1 < self._expected and self._linger_s > 0
            if lingers:
                self._lingering = leader
        if lingers:
            leader.lock.acquire(timeout=self._linger_s)
        with self._lock:
            if self._lingering is leader:
                self._lingering = None
            waiting = chain((leader,), self._waiting)
            leader.batch = first_part(
                waiting, MESSAGES_MAX, BYTES_MAX, lambda waiter: weight_of(waiter.draft)
            )
            del self._waiting[: len(leader.batch) - 1]
            self._in_flight += len(leader.batch)
        return leader.batch

    def _leave(self, waiter: _Waiter) -> None:
        """A caller was interrupted: its lane goes to another, and the callers of its request wait again."""
        waiter.has_left = True
        _wake_following(waiter)
        with self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            if self._lingering is waiter:
                self._lingering = None
            self._waiting[:0] = [other for other in waiter.batch if other.waits]
            # Where it has passed its lane on and was not ready, those who wait need another.
            takes_another = not waiter.leads and self._free_lanes > 0 and bool(self._waiting)
            if takes_another:
                self._free_lanes -= 1
        for other in waiter.batch:
            if not other.waits:
                _wake(other)
        if waiter.leads or takes_another:
            self._pass_on(waiter)

    def _pass_on(self, leader: _Waiter) -> None:
        """Give the lane to a waiting caller, or free it."""
        next_leader: _Waiter | None = None
        with self._lock:
            callers = self._in_flight + len(self._waiting)
            self._is_crowd = callers >= _CROWD
            uses_one_lane = callers >= _FEW and not self._is_crowd
            self._expected = max(1, callers if uses_one_lane else callers // self._lanes)
            if leader.leads:
                self._in_flight -= len(leader.batch)
                leader.leads = False
            if self._waiting and self._lingering is None:
                next_leader = self._waiting.pop(0)
                next_leader.leads = True
            else:
                self._free_lanes += 1
        if next_leader is not None:
            next_leader.lock.release()


def _wake_in_order(batch: Sequence[_Waiter]) -> None:
    """Wake all but the leader, which runs: the first of them now, each other by the one before."""
    for waiter, following in pairwise(batch):
        waiter.following = following
    _wake_following(batch[0])


def _wake_following(waiter: _Waiter) -> None:
    """Wake the next waiter, and in place of one that has left, those behind it."""
    following = waiter.following
    while following is not None:
        _wake(following)
        following = following.following if following.has_left else None


def _wake(waiter: _Waiter) -> None:
    """To wake twice does no harm: one that leaves may do what the one before it has just done."""
    try:  # noqa: SIM105 - it is quicker so, and done for every message
        waiter.lock.release()
    except RuntimeError:
        pass  # woken before
