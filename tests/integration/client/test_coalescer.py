"""Concurrent sends share requests, each with its own answer; a single one does not wait."""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from contextlib import suppress

import pytest

from tidemill.client.send.coalescer import Coalescer, _Waiter, _wake_following, _wake_in_order
from tidemill.core.errors import IllegalTopicError, UnreachableError
from tidemill.core.model import Draft, SendResult


@pytest.fixture
def interruptible():
    """A test run in the background of a shell ignores Ctrl-C from the start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _answer(draft: Draft):
    if draft.topic == "bad":
        return IllegalTopicError("bad")
    return SendResult(draft.id or "", draft.topic, None, None)


def _held_back():
    """A request that takes until the lock is opened; the semaphore tells of each that has begun."""
    lock, begun = threading.Event(), threading.Semaphore(0)

    def send(drafts):
        begun.release()
        assert lock.wait(120)
        return [_answer(draft) for draft in drafts]

    return send, lock, begun


def _in_threads(act, count: int) -> None:
    threads = [threading.Thread(target=act, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_a_lone_send_travels_alone_and_at_once() -> None:
    batches = []

    def send(drafts):
        batches.append(len(drafts))
        return [_answer(draft) for draft in drafts]

    coalescer = Coalescer(send)
    for number in range(10):
        assert coalescer.send(Draft("t", b"", id=str(number))).id == str(number)
    assert batches == [1] * 10


def test_those_who_come_meanwhile_travel_together() -> None:
    """While both lanes are busy eight more callers gather; they share the next request."""
    lock, entered, batches = threading.Event(), threading.Semaphore(0), []

    def send(drafts):
        batches.append(len(drafts))
        if len(batches) <= 2:
            entered.release()
            assert lock.wait(30)
        return [_answer(draft) for draft in drafts]

    coalescer = Coalescer(send, linger_s=0)
    answers = {}

    def one(number: int) -> None:
        answers[number] = coalescer.send(Draft("t", b"", id=str(number)))

    first = [threading.Thread(target=one, args=(number,)) for number in (100, 101)]
    for thread in first:
        thread.start()
        assert entered.acquire(timeout=30)
    rest = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in rest:
        thread.start()
    while len(coalescer._waiting) < 8:
        lock.wait(0.001)
    lock.set()
    for thread in first + rest:
        thread.join(30)
    assert sum(batches) == 10 and len(batches) <= 4
    assert {number: answer.id for number, answer in answers.items()} == {n: str(n) for n in answers}


def test_many_threads_each_get_their_own_answer() -> None:
    def send(drafts):
        return [_answer(draft) for draft in drafts]

    coalescer = Coalescer(send)
    wrong = []

    def many(number: int) -> None:
        for turn in range(200):
            topic = "bad" if (turn + number) % 7 == 0 else "t"
            answer = coalescer.send(Draft(topic, b"", id=f"{number}-{turn}"))
            is_right = (
                isinstance(answer, IllegalTopicError) if topic == "bad" else answer.id == f"{number}-{turn}"
            )
            if not is_right:
                wrong.append((number, turn, answer))

    _in_threads(many, 16)
    assert not wrong
    assert coalescer._free_lanes == 2 and not coalescer._waiting and coalescer._in_flight == 0


def test_a_request_that_fails_fails_for_all_of_it_and_the_next_goes_on() -> None:
    is_down = True

    def send(drafts):
        if is_down:
            raise UnreachableError("down")
        return [_answer(draft) for draft in drafts]

    coalescer = Coalescer(send)
    failed = []

    def one(number: int) -> None:
        with pytest.raises(UnreachableError):
            coalescer.send(Draft("t", b"", id=str(number)))
        failed.append(number)

    _in_threads(one, 8)
    assert sorted(failed) == list(range(8))
    is_down = False
    assert coalescer.send(Draft("t", b"", id="x")).id == "x"


def test_the_main_thread_shares_nothing_that_an_interrupt_could_leave_half_done(interruptible) -> None:
    held_back, lock, entered = _held_back()

    def send(drafts):
        if threading.current_thread() is not threading.main_thread() or lock.is_set():
            return held_back(drafts)
        own = threading.Lock()  # an Event that is shared could itself be left half done
        own.acquire()
        entered.release()
        for _ in range(600):  # a signal that comes just before it waits is seen when it has waited
            own.acquire(timeout=0.1)
        raise AssertionError("nothing was raised")

    coalescer = Coalescer(send, linger_s=0)
    busy = [threading.Thread(target=coalescer.send, args=(Draft("t", b"", id=name),)) for name in "abcd"]
    for thread in busy:
        thread.start()
    for _ in range(2):
        assert entered.acquire(timeout=120)
    while len(coalescer._waiting) < 2:
        lock.wait(0.001)
    main = threading.get_ident()

    def interrupt() -> None:
        assert entered.acquire(timeout=120)
        signal.pthread_kill(main, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    gc.disable()  # what is raised while garbage is collected goes nowhere
    try:
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            coalescer.send(Draft("t", b"", id="given up"))
    finally:
        gc.enable()
    interrupter.join(120)
    assert coalescer._free_lanes == 0 and len(coalescer._waiting) == 2
    lock.set()
    for thread in busy:
        thread.join(120)
        assert not thread.is_alive()
    _is_at_rest(coalescer)
    assert coalescer.send(Draft("t", b"", id="x")).id == "x"


class _TimeLimit(Exception):
    """What a handler of a signal may raise."""


@pytest.mark.parametrize("kind", [_TimeLimit, KeyboardInterrupt])
def test_many_interrupts_of_the_main_thread_reach_no_other(kind) -> None:
    is_over, others, went_wrong = threading.Event(), [0] * 6, []

    def send(drafts):
        own = threading.Lock()  # an Event that is shared could itself be left half done
        own.acquire()
        own.acquire(timeout=0.0005)
        return [_answer(draft) for draft in drafts]

    def strike(number: int, frame: object) -> None:
        raise kind

    coalescer = Coalescer(send)

    def go_on(number: int) -> None:
        try:
            while not is_over.is_set():
                assert coalescer.send(Draft("t", b"", id=f"{number}")).id == f"{number}"
                others[number] += 1
        except BaseException as error:
            went_wrong.append(error)
            raise

    def send_until_struck(after_s: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, after_s)
        while True:
            coalescer.send(Draft("t", b"", id="main"))

    threads = [threading.Thread(target=go_on, args=(number,), daemon=True) for number in range(6)]
    before = signal.signal(signal.SIGALRM, strike)
    gc.disable()  # what is raised while garbage is collected goes nowhere, and would be waited for in vain
    try:
        for thread in threads:
            thread.start()
        for turn in range(300):
            with pytest.raises(kind):
                send_until_struck(0.0005 + (turn % 40) * 0.0001)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
        is_over.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not went_wrong and min(others) > 0
    _is_at_rest(coalescer)


def test_those_who_travelled_with_one_that_was_struck_are_sent_again() -> None:
    """Something is raised into a leader's thread that is no fault of the request."""
    first, lock, entered, batches = threading.Event(), threading.Event(), threading.Semaphore(0), []

    def send(drafts):
        batches.append([draft.id for draft in drafts])
        entered.release()
        assert first.wait(120) if len(batches) == 1 else lock.wait(120)
        if drafts[0].id == "struck":
            raise SystemExit
        return [_answer(draft) for draft in drafts]

    coalescer = Coalescer(send, linger_s=0, lanes=1)
    answers = {}

    def ask(name: str) -> None:
        with suppress(SystemExit):
            answers[name] = coalescer.send(Draft("t", b"", id=name)).id

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("first", "struck", "a", "b", "c")]
    for count, thread in enumerate(threads):
        thread.start()
        while len(coalescer._waiting) < count:
            first.wait(0.001)
        if not count:
            assert entered.acquire(timeout=120)
    first.set()
    lock.set()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert answers == {name: name for name in ("first", "a", "b", "c")}
    assert batches == [["first"], ["struck", "a", "b", "c"], ["a", "b", "c"]]
    _is_at_rest(coalescer)


def test_one_that_is_struck_before_its_passengers_have_their_answers_leaves_them_to_another() -> None:
    coalescer = Coalescer(lambda drafts: [_answer(draft) for draft in drafts], linger_s=0)
    leader, answered, waiting = batch = _batch("leader", "answered", "waiting")
    coalescer._takes_a_lane(leader)
    leader.batch, coalescer._in_flight = batch, 3
    coalescer._pass_on(leader)
    leader.answer = answered.answer = _answer(answered.draft)
    coalescer._leave(leader)
    assert _is_called(answered)
    assert _is_called(waiting) and waiting.leads
    coalescer._pass_on(waiting)
    _is_at_rest(coalescer)


def _is_at_rest(coalescer: Coalescer) -> None:
    assert coalescer._free_lanes == coalescer._lanes
    assert not coalescer._waiting and coalescer._in_flight == 0 and coalescer._lingering is None


def test_a_caller_that_is_interrupted_when_it_is_to_lead_passes_the_lane_on() -> None:
    coalescer = Coalescer(lambda drafts: [_answer(draft) for draft in drafts], lanes=1)
    waiter = _Waiter(Draft("t", b"", id="next_leader"))
    coalescer._free_lanes, coalescer._waiting = 0, [waiter]
    coalescer._pass_on(_Waiter(Draft("t", b"", id="leader")))
    assert waiter.leads and coalescer._free_lanes == 0
    coalescer._leave(waiter)
    assert coalescer._free_lanes == 1
    assert coalescer.send(Draft("t", b"", id="x")).id == "x"


def _batch(*names: str) -> list[_Waiter]:
    return [_Waiter(Draft("t", b"", id=name)) for name in names]


def _is_called(waiter: _Waiter) -> bool:
    return waiter.lock.acquire(blocking=False)


def test_each_calls_the_one_behind_it() -> None:
    leader, first, second = batch = _batch("leader", "first", "second")
    _wake_in_order(batch)
    assert _is_called(first) and not _is_called(second)
    _wake_following(first)
    assert _is_called(second)
    assert leader.lock.locked()


def test_those_behind_one_that_has_left_are_called_in_its_place() -> None:
    _, first, second, third = batch = _batch("leader", "first", "second", "third")
    first.has_left = second.has_left = True
    _wake_in_order(batch)
    assert _is_called(third)


def test_one_that_leaves_when_it_was_called_calls_the_next_and_twice_does_no_harm() -> None:
    coalescer = Coalescer(lambda drafts: [_answer(draft) for draft in drafts])
    _, first, second = batch = _batch("leader", "first", "second")
    _wake_in_order(batch)
    coalescer._leave(first)
    coalescer._leave(first)
    assert _is_called(second)
    assert coalescer._free_lanes == 2


@pytest.mark.parametrize(("on_the_way", "waits"), [(7, False), (8, True)])
def test_a_few_have_a_second_lane_and_a_crowd_goes_by_one(on_the_way, waits) -> None:
    send, lock, sent = _held_back()
    coalescer = Coalescer(send, linger_s=0)
    coalescer._in_flight = on_the_way  # as if one lane were taken by so many
    coalescer._free_lanes = 1
    leader = _Waiter(Draft("t", b"", id="leader"))
    leader.leads, leader.batch = True, [leader] * on_the_way
    newcomer = threading.Thread(target=coalescer.send, args=(Draft("t", b"", id="x"),))
    newcomer.start()
    if waits:
        while not coalescer._waiting:
            lock.wait(0.001)
        coalescer._pass_on(leader)  # the crowd is back: the lane is for the waiting callers
    assert sent.acquire(timeout=120)
    lock.set()
    newcomer.join(120)
    assert not newcomer.is_alive() and not coalescer._waiting


def test_a_crowd_goes_by_two_requests_at_once_and_everybody_is_answered() -> None:
    count = 40
    one_is_large, another_goes = threading.Event(), threading.Event()

    def send(drafts):
        if one_is_large.is_set():
            another_goes.set()
        elif len(drafts) > 8:
            one_is_large.set()
            assert another_goes.wait(30)
        else:  # the first few, until all others wait behind them
            while len(coalescer._waiting) < count - 2 and not one_is_large.is_set():
                another_goes.wait(0.001)
        return [_answer(draft) for draft in drafts]

    coalescer = Coalescer(send)
    answered: list[str] = []

    def act(number: int) -> None:
        names = [f"{number}-{turn}" for turn in range(20)]
        answered.extend([coalescer.send(Draft("t", b"", id=name)).id for name in names])

    _in_threads(act, count)
    assert sorted(answered) == sorted(f"{number}-{turn}" for number in range(count) for turn in range(20))


def test_what_was_answered_is_let_go_of_without_the_garbage_collector() -> None:
    """A crowd would keep it at work: the leading thread references all calls of its request, its own too."""

    class Told:
        """An answer that can be asked whether it is still there."""

    told: list[weakref.ref[Told]] = []

    def send(drafts):
        answers = [Told() for _ in drafts]
        told.extend(map(weakref.ref, answers))
        return answers

    coalescer = Coalescer(send)

    def several(number: int) -> None:
        for _ in range(20):
            coalescer.send(Draft("t", b"", id=str(number)))

    gc.collect()
    gc.disable()
    try:
        _in_threads(several, 8)
        assert len(told) == 160
        assert [answer for answer in told if answer() is not None] == []
    finally:
        gc.enable()


def test_what_was_raised_is_let_go_of_without_the_garbage_collector() -> None:
    """An error holds the frames it came through, and they must not hold it."""
    raised: list[weakref.ref[UnreachableError]] = []

    def send(drafts):
        fault = UnreachableError("no broker")
        raised.append(weakref.ref(fault))
        try:
            raise fault
        finally:
            del fault

    coalescer = Coalescer(send)

    def several(number: int) -> None:
        for _ in range(20):
            with suppress(UnreachableError):
                coalescer.send(Draft("t", b"", id=str(number)))

    gc.collect()
    gc.disable()
    try:
        _in_threads(several, 8)
        assert raised
        assert [error for error in raised if error() is not None] == []
    finally:
        gc.enable()
