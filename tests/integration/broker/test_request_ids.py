"""Cancels and reschedules with a request id: a repeated request gets the first answer."""

from __future__ import annotations

import itertools
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.small_broker import START_MS
from tidemill.broker.change.requests import NamedRows, fingerprint, parts_of
from tidemill.core.errors import IllegalRequestIdError, RequestIdReusedError
from tidemill.core.limits import HOUR_MS, MINUTE_MS
from tidemill.core.model import CancelAnswer, Draft
from tidemill.core.request_ids import request_key
from tidemill.log.frame import FRAME_FORMAT
from tidemill.store.formats import framing
from tidemill.store.formats.request_format import Request
from tidemill.testing import SimulatedCrash

CANCELLED, RELEASED = CancelAnswer.CANCELLED, CancelAnswer.RELEASED
ALREADY, UNKNOWN = CancelAnswer.ALREADY_CANCELLED, CancelAnswer.UNKNOWN
_END_MS = START_MS + 200_000


def _send(small, count=3, **fields):
    return [
        small.send("orders", b"%d" % i, **{"delay_ms": 100_000 + i, "keys": ("k",), **fields})
        for i in range(count)
    ]


def _handles(small, count=3, **fields):
    return [receipt.handle for receipt in _send(small, count, **fields)]


_KILLS = {
    "answer lost": lambda small: None,
    "killed": lambda small: small.kill_and_open(),
    "power cut": lambda small: small.kill_and_open(power_cut=True),
    "closed": lambda small: small.reopen(),
}


@pytest.fixture(params=_KILLS)
def between(request, small):
    """What happens between a request and its repetition."""
    return lambda: _KILLS[request.param](small)


# -- the same answer again ------------------------------------------------------------------------


def test_a_cancel_by_handles_answers_as_the_first_time(small, between):
    first, second, third = _handles(small)
    gone = small.send("orders", b"gone", delay_ms=5).handle
    small.advance(5)
    small.broker.cancel([third])
    named = [first, gone, third, second, first]
    answers = small.broker.cancel(named, request_id="r1")
    assert answers == [CANCELLED, RELEASED, ALREADY, CANCELLED, ALREADY]
    end = small.log_end
    between()
    assert small.broker.cancel(named, request_id="r1") == answers
    assert small.log_end == end
    assert small.broker.cancel(named, request_id="r2") == [ALREADY, RELEASED, ALREADY, ALREADY, ALREADY]


def test_without_an_id_it_answers_as_before(small):
    (handle,) = _handles(small, 1)
    assert small.broker.cancel([handle]) == [CANCELLED]
    assert small.broker.cancel([handle]) == [ALREADY]


@pytest.mark.parametrize(
    "cancel",
    [
        lambda broker: broker.cancel_where("orders", key="k", request_id="r"),
        lambda broker: broker.cancel_where(
            "orders", from_ms=START_MS, to_ms=START_MS + 200_000, request_id="r"
        ),
    ],
)
def test_a_cancel_by_key_or_range_counts_as_the_first_time(small, between, cancel):
    _send(small)
    assert cancel(small.broker) == 3
    between()
    _send(small, 2)  # these came later: the request did not mean them
    assert cancel(small.broker) == 3
    assert small.broker.status().pending == 2


def test_a_move_by_a_span_moves_once(small, between):
    handles = _handles(small)
    named = [*handles, handles[0]]
    answers = small.broker.reschedule(named, by_ms=5_000, request_id="r")
    between()
    assert small.broker.reschedule(named, by_ms=5_000, request_id="r") == answers
    assert [answer.deliver_at_ms - START_MS for answer in answers] == [105_000, 105_001, 105_002, 105_000]
    assert [p.deliver_at_ms for p in small.broker.views.pending()] == [
        START_MS + 105_000 + i for i in range(3)
    ]


def test_a_delay_counts_from_the_first_time(small, between):
    (handle,) = _handles(small, 1)
    (answer,) = small.broker.reschedule([handle], delay_ms=7_000, request_id="r")
    between()
    small.clock.advance(500)
    assert small.broker.reschedule([handle], delay_ms=7_000, request_id="r") == [answer]
    assert answer.deliver_at_ms == START_MS + 7_000


@pytest.mark.parametrize(
    "move",
    [
        lambda broker: broker.reschedule_where("orders", key="k", by_ms=1, request_id="r"),
        lambda broker: broker.reschedule_where(
            "orders", from_ms=START_MS, to_ms=START_MS + 200_000, by_ms=1, request_id="r"
        ),
    ],
)
def test_a_move_by_key_or_range_counts_as_the_first_time(small, between, move):
    _send(small)
    assert move(small.broker) == 3
    between()
    _send(small, 2)
    assert move(small.broker) == 3
    dues = [p.deliver_at_ms - START_MS for p in small.broker.views.pending()]
    assert dues == [100_000, 100_001, 100_001, 100_002, 100_003]


def test_what_became_of_a_message_later_changes_no_answer(small):
    moved, cancelled = _handles(small, 2)
    (answer,) = small.broker.reschedule([moved], by_ms=1, request_id="move")
    assert small.broker.cancel([moved, cancelled], request_id="cancel") == [CANCELLED] * 2
    assert small.broker.reschedule([moved], by_ms=1, request_id="move") == [answer]
    small.broker.topics.delete("orders", is_forced=True)
    assert small.broker.reschedule([moved], by_ms=1, request_id="move") == [answer]
    assert small.broker.cancel([moved, cancelled], request_id="cancel") == [CANCELLED] * 2


def test_a_message_that_took_the_id_of_a_cancelled_one_is_not_meant(small):
    old = small.send("orders", b"old", id="x", delay_ms=2 * HOUR_MS + 1_000).handle
    small.broker.reschedule([old], by_ms=1)  # so that the handle finds its message by the id
    small.advance(2 * HOUR_MS)
    assert small.broker.cancel([old], request_id="r") == [CANCELLED]
    new = small.send("orders", b"new", id="x", delay_ms=90_000)
    assert not new.is_repeat
    assert small.broker.cancel([old], request_id="r") == [CANCELLED]
    assert small.broker.status().pending == 1


def test_answers_that_changed_nothing_write_nothing(small):
    gone = small.send("orders", b"gone", delay_ms=5).handle
    small.advance(5)
    end = small.log_end
    assert small.broker.cancel([gone], request_id="r") == [RELEASED]
    assert small.broker.cancel_where("orders", key="none", request_id="s") == 0
    assert small.broker.reschedule([gone], by_ms=5, request_id="t")[0].answer is RELEASED
    assert small.log_end == end
    # So the id is still free for another request.
    (handle,) = _handles(small, 1)
    assert small.broker.cancel([handle], request_id="r") == [CANCELLED]


# -- which request it is --------------------------------------------------------------------------


def test_the_same_id_with_another_request_is_refused(small):
    first, second, third = _handles(small)
    small.broker.cancel([first], request_id="r")
    small.broker.reschedule([second], by_ms=5, request_id="m")
    end = small.log_end
    others = [
        lambda: small.broker.cancel([second], request_id="r"),
        lambda: small.broker.cancel([first, second], request_id="r"),
        lambda: small.broker.cancel_where("orders", key="k", request_id="r"),
        lambda: small.broker.cancel_where("orders", from_ms=0, to_ms=5, request_id="r"),
        lambda: small.broker.reschedule([first], by_ms=5, request_id="r"),
        lambda: small.broker.reschedule([second], by_ms=6, request_id="m"),
        lambda: small.broker.reschedule([second], delay_ms=5, request_id="m"),
        lambda: small.broker.reschedule([third], by_ms=5, request_id="m"),
        lambda: small.broker.reschedule_where("orders", key="k", by_ms=5, request_id="m"),
    ]
    for ask in others:
        with pytest.raises(
            RequestIdReusedError,
            match=r"the request id '[rm]' was used within the last 1h for another request",
        ):
            ask()
    assert small.log_end == end


_RULE = "; use 1 to 255 visible ASCII characters, such as a UUID"
_ILLEGAL = {
    "": "the request id is empty" + _RULE,
    "x" * 256: f"the request id {'x' * 40!r}... has 256 characters, the limit is 255" + _RULE,
    "two words": "the request id 'two words' has the character ' ' at position 4" + _RULE,
    "a\u043a": r"the request id 'a\u043a' has the character '\u043a' at position 2" + _RULE,
    "line\n": r"the request id 'line\n' has the character '\n' at position 5" + _RULE,
    5: "a request id must be a text, int was given",
}


@pytest.mark.parametrize("request_id", _ILLEGAL)
def test_a_request_id_that_is_none_is_refused(small, request_id):
    (handle,) = _handles(small, 1)
    with pytest.raises(IllegalRequestIdError, match=re.escape(_ILLEGAL[request_id]) + "$"):
        small.broker.cancel([handle], request_id=request_id)
    assert small.broker.status().pending == 1


def test_an_id_is_kept_for_an_hour(small):
    first, second = _handles(small, 2, delay_ms=10 * HOUR_MS)
    assert small.broker.cancel([first], request_id="r") == [CANCELLED]
    small.advance(HOUR_MS - 1)
    assert small.broker.cancel([first], request_id="r") == [CANCELLED]
    small.advance(1)
    assert small.broker.cancel([second], request_id="r") == [CANCELLED]
    assert small.broker.cancel([second], request_id="r") == [CANCELLED]


def test_the_answer_outlives_the_messages_segment(small):
    """The message is cut off with the head; the frame that cancelled it is younger."""
    (handle,) = _handles(small, 1, delay_ms=10 * HOUR_MS)
    small.fill_segment()
    small.advance(50 * MINUTE_MS)
    assert small.broker.cancel([handle], request_id="r") == [CANCELLED]
    small.fill_segment()
    small.advance(20 * MINUTE_MS)
    assert small.broker.store.log.head > 0
    assert small.broker.cancel([handle]) == [UNKNOWN]
    assert small.broker.cancel([handle], request_id="r") == [CANCELLED]


def test_an_id_is_found_however_the_index_was_made(small):
    first, second = _handles(small, 2)
    small.broker.cancel([first], request_id="r")
    (moved,) = small.broker.reschedule([second], by_ms=1, request_id="m")
    small.broker.store.checkpoint()
    for _ in range(80):  # the memory of the find index is full, and becomes a file
        small.send("orders", delay_ms=500_000)
    small.broker.store.checkpoint()

    def ask_again():
        assert small.broker.cancel([first], request_id="r") == [CANCELLED]
        assert small.broker.reschedule([second], by_ms=1, request_id="m") == [moved]

    ask_again()
    small.reopen()
    ask_again()
    small.close()
    small.delete("index/find")
    small.open()
    ask_again()
    small.close()
    small.delete("index")
    small.open()
    ask_again()


# -- several at once, several frames --------------------------------------------------------------


def test_two_copies_at_the_same_time_get_the_same_answer(small):
    handles = _handles(small, 50)
    barrier = threading.Barrier(4)

    def ask():
        barrier.wait()
        return (
            small.broker.cancel(handles[:25], request_id="c"),
            small.broker.reschedule(handles[25:], by_ms=9, request_id="m"),
        )

    with ThreadPoolExecutor(4) as threads:
        answers = [future.result() for future in [threads.submit(ask) for _ in range(4)]]
    assert answers[0][0] == [CANCELLED] * 25
    assert all(answer == answers[0] for answer in answers)
    assert [p.deliver_at_ms - START_MS for p in small.broker.views.pending()] == [
        100_000 + i + 9 for i in range(25, 50)
    ]


class _Crashing:
    """Lets so many frames of a move into the log; then the broker dies."""

    def __init__(self, small, monkeypatch, frames: int) -> None:
        writer, left = small.broker.store.writer, [frames]
        append = writer.re_enter

        def re_enter(*args):
            if not left[0]:
                raise SimulatedCrash("in the middle of a move")
            left[0] -= 1
            return append(*args)

        monkeypatch.setattr(writer, "re_enter", re_enter)


_MOVES = {
    "by a span": {"by_ms": 5_000},
    "to a time": {"deliver_at_ms": START_MS + 150_000},
    "to a delay": {"delay_ms": 150_000},
}


@pytest.mark.parametrize("to", _MOVES)
@pytest.mark.parametrize("frames", [0, 1, 2])
@pytest.mark.parametrize("how", ["handles", "key", "range"])
def test_a_move_that_was_cut_short_is_continued(small, monkeypatch, to, frames, how):
    monkeypatch.setattr(framing, "MOVE_COUNT_MAX", 4)
    handles = _handles(small, 11)
    named = [*handles, *handles[:2]]
    asks = {
        "handles": lambda: small.broker.reschedule(named, **_MOVES[to], request_id="r"),
        "key": lambda: small.broker.reschedule_where("orders", key="k", **_MOVES[to], request_id="r"),
        "range": lambda: small.broker.reschedule_where(
            "orders", from_ms=START_MS, to_ms=START_MS + 900_000, **_MOVES[to], request_id="r"
        ),
    }
    _Crashing(small, monkeypatch, frames)
    with pytest.raises(SimulatedCrash):
        asks[how]()
    small.kill_and_open()
    small.clock.advance(10)
    answer = asks[how]()
    dues = [p.deliver_at_ms - START_MS for p in small.broker.views.pending()]
    if to == "to a delay" and not frames:
        assert dues == [150_010] * 11
    else:
        assert dues == ([105_000 + i for i in range(11)] if to == "by a span" else [150_000] * 11)
    if how == "handles":
        assert [a.deliver_at_ms for a in answer[:11]] == [START_MS + due for due in dues]
        assert answer[11:] == answer[:2]
        assert small.broker.cancel([a.handle for a in answer[:11]]) == [CANCELLED] * 11
    else:
        assert answer == 11
    end = small.log_end
    assert asks[how]() == answer
    small.kill_and_open()
    assert asks[how]() == answer
    assert small.log_end == end


def test_what_was_moved_and_then_changed_by_others_is_not_moved_again(small, monkeypatch):
    monkeypatch.setattr(framing, "MOVE_COUNT_MAX", 2)
    handles = _handles(small, 4)

    def move():
        return small.broker.reschedule_where(
            "orders", from_ms=START_MS, to_ms=START_MS + HOUR_MS, by_ms=50, request_id="r"
        )

    _Crashing(small, monkeypatch, 1)
    with pytest.raises(SimulatedCrash):
        move()
    small.kill_and_open()
    small.broker.reschedule([handles[0]], by_ms=1_000)
    small.broker.cancel([handles[3]])
    assert move() == 3
    dues = [p.deliver_at_ms - START_MS for p in small.broker.views.pending()]
    assert dues == [100_051, 100_052, 101_050]
    assert move() == 3


# -- on disk --------------------------------------------------------------------------------------


def _formats(small):
    log = small.broker.store.log
    data = (small.directory / "log" / f"{log.segment_starts()[0]:020d}.log").read_bytes()
    return [data[frame.offset + 5] for frame in log.frames(log.head, log.written_end)]


def test_only_frames_with_a_request_need_the_newer_format(small):
    first, second = _handles(small, 2)
    small.broker.cancel([first])
    small.broker.reschedule([second], by_ms=1)
    assert set(_formats(small)) == {1}
    small.broker.cancel([second], request_id="r")
    assert _formats(small)[-1] == FRAME_FORMAT == 3


def test_many_handles_are_one_frame(small):
    receipts = small.broker.send([Draft("orders", b"", delay_ms=100_000) for _ in range(2_000)])
    handles = [receipt.handle for receipt in receipts]
    answers = small.broker.cancel(handles, request_id="r")
    assert answers == [CANCELLED] * 2_000 == small.broker.cancel(handles, request_id="r")


# -- which request it is, as numbers --------------------------------------------------------------


def _rows(*handles):
    topics, ids, seqs = zip(*handles, strict=True)
    return NamedRows.of(pa.array(topics), pa.array(ids), np.array(seqs, np.int64))


def test_the_hash_of_a_request_never_changes():
    """It is on disk: another version of Tidemill may be asked again."""
    assert fingerprint("cancel key", "orders", "k") == 0xB72C586BAB4A11E0
    assert fingerprint("reschedule", _rows(("t", "a", 5), ("u", "b", 6)), None, -1, 7) == 0x45EF9FD909DA9607
    assert request_key("payment-17").kept.hex() == "7f57404e1ba3268b88ce829620aed333"
    assert request_key("payment-17", "shop").kept.hex() == "14a9867600a921c63c30b4d75c5fdce1"


_FIELD = st.none() | st.integers(-3, 300) | st.text(max_size=3)


@given(st.lists(_FIELD, max_size=4), st.lists(_FIELD, max_size=4))
def test_requests_that_differ_have_different_hashes(one, other):
    assert (fingerprint("x", *one) == fingerprint("x", *other)) == (one == other)


_HANDLE = st.tuples(st.sampled_from("tu"), st.text("ab", max_size=3), st.integers(0, 3))


@given(st.lists(_HANDLE, min_size=1, max_size=4), st.lists(_HANDLE, min_size=1, max_size=4))
def test_handles_that_differ_have_different_hashes(one, other):
    assert (fingerprint("x", _rows(*one)) == fingerprint("x", _rows(*other))) == (one == other)


@given(st.data())
def test_the_parts_of_a_move_say_which_row_each_answers(data):
    """Against a dictionary: row to message, cut into parts, and put together again from the parts."""
    count = data.draw(st.integers(1, 12))
    named = data.draw(
        st.lists(st.tuples(st.integers(0, 99), st.integers(0, count - 1)), unique_by=lambda p: p[0])
    )
    borders = sorted(
        {0, count, *data.draw(st.sets(st.integers(1, max(1, count - 1)), max_size=4))} & {*range(count + 1)}
    )
    bounds = list(itertools.pairwise(borders))
    rows, indexes = (np.array([pair[at] for pair in named], np.int64) for at in (0, 1))
    parts = parts_of(Request(b"i" * 16, 7), bounds, None, rows, indexes)
    assert [(part.part, part.parts, part.done) for part in parts] == [
        (number + 1, len(bounds), start) for number, (start, _) in enumerate(bounds)
    ]
    found = {
        row: start + index
        for part, (start, _) in zip(parts, bounds, strict=True)
        for row, index in zip(part.rows.tolist(), part.indexes.tolist(), strict=True)
    }
    assert found == dict(named)
