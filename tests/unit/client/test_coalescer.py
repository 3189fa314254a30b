"""Concurrent sends share requests, each with its own answer; a lone one waits for nobody."""

from __future__ import annotations

import signal
import threading

import pytest

from tidemill.client.coalescer import Coalescer, _call_following, _call_one_after_the_other, _Seat
from tidemill.client.retrying import Unreachable
from tidemill.core.errors import IllegalTopic
from tidemill.core.model import Draft, Receipt


@pytest.fixture
def interruptible():
    """A test run in the background of a shell ignores Ctrl-C from the start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _answer(draft: Draft):
    if draft.topic == "bad":
        return IllegalTopic("bad")
    return Receipt(draft.id or "", draft.topic, None, -1)


def _held_back():
    """A request that takes until the gate is opened; the semaphore tells of each that has begun."""
    gate, begun = threading.Event(), threading.Semaphore(0)

    def send(drafts):
        begun.release()
        assert gate.wait(120)
        return [_answer(draft) for draft in drafts]

    return send, gate, begun


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
    gate, entered, batches = threading.Event(), threading.Semaphore(0), []

    def send(drafts):
        batches.append(len(drafts))
        if len(batches) <= 2:
            entered.release()
            assert gate.wait(30)
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
        gate.wait(0.001)
    gate.set()
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
            is_right = isinstance(answer, IllegalTopic) if topic == "bad" else answer.id == f"{number}-{turn}"
            if not is_right:
                wrong.append((number, turn, answer))

    _in_threads(many, 16)
    assert not wrong
    assert coalescer._free_lanes == 2 and not coalescer._waiting and coalescer._travelling == 0


def test_a_request_that_fails_fails_for_all_of_it_and_the_next_goes_on() -> None:
    is_down = True

    def send(drafts):
        if is_down:
            raise Unreachable("down")
        return [_answer(draft) for draft in drafts]

    coalescer = Coalescer(send)
    failed = []

    def one(number: int) -> None:
        with pytest.raises(Unreachable):
            coalescer.send(Draft("t", b"", id=str(number)))
        failed.append(number)

    _in_threads(one, 8)
    assert sorted(failed) == list(range(8))
    is_down = False
    assert coalescer.send(Draft("t", b"", id="x")).id == "x"


def test_a_caller_that_is_interrupted_while_it_waits_takes_nothing_along(interruptible) -> None:
    send, gate, entered = _held_back()
    coalescer = Coalescer(send, linger_s=0)
    busy = [threading.Thread(target=coalescer.send, args=(Draft("t", b"", id=name),)) for name in "ab"]
    for thread in busy:
        thread.start()
        assert entered.acquire(timeout=120)
    main = threading.main_thread().ident
    assert main == threading.get_ident()

    def interrupt() -> None:
        while not coalescer._waiting:
            gate.wait(0.001)
        signal.pthread_kill(main, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        coalescer.send(Draft("t", b"", id="given up"))
    interrupter.join(120)
    gate.set()
    for thread in busy:
        thread.join(120)
    assert coalescer._free_lanes == 2 and not coalescer._waiting
    assert coalescer.send(Draft("t", b"", id="x")).id == "x"


def test_a_caller_that_is_interrupted_when_it_is_to_lead_passes_the_lane_on() -> None:
    coalescer = Coalescer(lambda drafts: [_answer(draft) for draft in drafts], lanes=1)
    seat = _Seat(Draft("t", b"", id="heir"))
    coalescer._free_lanes, coalescer._waiting = 0, [seat]
    coalescer._pass_on(0)
    assert seat.leads and coalescer._free_lanes == 0
    coalescer._leave(seat)
    assert coalescer._free_lanes == 1
    assert coalescer.send(Draft("t", b"", id="x")).id == "x"


def _batch(*names: str) -> list[_Seat]:
    return [_Seat(Draft("t", b"", id=name)) for name in names]


def _is_called(seat: _Seat) -> bool:
    return seat.gate.acquire(blocking=False)


def test_each_calls_the_one_behind_it() -> None:
    leader, first, second = batch = _batch("leader", "first", "second")
    _call_one_after_the_other(batch)
    assert _is_called(first) and not _is_called(second)
    _call_following(first)
    assert _is_called(second)
    assert leader.gate.locked()


def test_those_behind_one_that_has_left_are_called_in_its_place() -> None:
    _, first, second, third = batch = _batch("leader", "first", "second", "third")
    first.has_left = second.has_left = True
    _call_one_after_the_other(batch)
    assert _is_called(third)


def test_one_that_leaves_when_it_was_called_calls_the_next_and_twice_does_no_harm() -> None:
    coalescer = Coalescer(lambda drafts: [_answer(draft) for draft in drafts])
    _, first, second = batch = _batch("leader", "first", "second")
    _call_one_after_the_other(batch)
    coalescer._leave(first)
    coalescer._leave(first)
    assert _is_called(second)
    assert coalescer._free_lanes == 2


def test_a_caller_that_is_interrupted_in_a_crowd_leaves_the_others_their_answers(interruptible) -> None:
    send, gate, entered = _held_back()
    coalescer = Coalescer(send, linger_s=0, lanes=1)
    answers: list[str] = []

    def ask(name: str) -> None:
        answers.append(coalescer.send(Draft("t", b"", id=name)).id)

    first = threading.Thread(target=ask, args=("first",))
    first.start()
    assert entered.acquire(timeout=120)
    others = [threading.Thread(target=ask, args=(name,)) for name in "abcd"]
    main = threading.get_ident()

    def crowd_then_interrupt() -> None:
        while len(coalescer._waiting) < 1:  # the main thread waits
            gate.wait(0.001)
        for thread in others:
            thread.start()
        while len(coalescer._waiting) < 5:
            gate.wait(0.001)
        signal.pthread_kill(main, signal.SIGINT)

    helper = threading.Thread(target=crowd_then_interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        coalescer.send(Draft("t", b"", id="given up"))
    helper.join(120)
    gate.set()
    for thread in (first, *others):
        thread.join(120)
    assert sorted(answers) == ["a", "b", "c", "d", "first"]
    assert coalescer._free_lanes == 1


@pytest.mark.parametrize(("on_the_way", "waits"), [(7, False), (8, True)])
def test_a_few_have_a_second_lane_and_a_crowd_goes_by_one(on_the_way, waits) -> None:
    send, gate, sent = _held_back()
    coalescer = Coalescer(send, linger_s=0)
    coalescer._travelling = on_the_way  # as if one lane were taken by so many
    coalescer._free_lanes = 1
    newcomer = threading.Thread(target=coalescer.send, args=(Draft("t", b"", id="x"),))
    newcomer.start()
    if waits:
        while not coalescer._waiting:
            gate.wait(0.001)
        coalescer._pass_on(on_the_way)  # the crowd is back: the lane is for whoever waits
    assert sent.acquire(timeout=120)
    gate.set()
    newcomer.join(120)
    assert not newcomer.is_alive() and not coalescer._waiting
