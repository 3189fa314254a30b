"""An id that a caller gave names one message: the same content again is a repeat, another one is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.hypothesis_examples import examples
from tidemill.core.errors import IdInUseError
from tidemill.core.limits import FRAME_ROWS_MAX, HOUR_MS
from tidemill.core.model import Draft, Once, SendResult

_FIRST = Draft("t", b"one", id="x", delay_ms=60_000, keys=("k",), tag="a", properties={"p": "1", "q": "2"})
_OTHERS = {
    "body": replace(_FIRST, body=b"two"),
    "keys": replace(_FIRST, keys=("l",)),
    "no keys": replace(_FIRST, keys=()),
    "tag": replace(_FIRST, tag="b"),
    "message group": replace(_FIRST, message_group="g"),
    "properties": replace(_FIRST, properties={"p": "1"}),
}
_SAME = {
    "later": replace(_FIRST, delay_ms=90_000),
    "untimed": replace(_FIRST, delay_ms=None),
    "level": replace(_FIRST, delay_ms=None, level=3),
    "at a time": replace(_FIRST, delay_ms=None, deliver_at_ms=0),
    "order": replace(_FIRST, properties={"q": "2", "p": "1"}),
    "born": replace(_FIRST, born_at_ms=1),
}


def _table(*drafts: Draft, spaced: bool = False) -> pa.Table:
    return pa.table(
        {
            "body": [d.body for d in drafts],
            "id": [d.id for d in drafts],
            "key": ["".join(d.keys) for d in drafts],
            "tag": [d.tag for d in drafts],
            "message_group": [d.message_group for d in drafts],
            "properties": [json.dumps(d.properties, indent=1 if spaced else None) for d in drafts],
            "delay_ms": pa.array([d.delay_ms for d in drafts], pa.int64()),
        }
    )


def _alone(broker, draft):
    return broker.send([draft])[0].handle


def _together(broker, draft):
    more = [Draft("t", b"%d" % number, id=f"{draft.id}{number}") for number in range(20)]
    answers = broker.send_each([*more[:10], draft, *more[10:]])
    assert all(isinstance(answer, SendResult) for answer in (*answers[:10], *answers[11:]))
    if not isinstance(answers[10], SendResult):
        raise answers[10]
    return answers[10].handle


def _as_table(broker, draft):
    return broker.send_table(_table(draft), topic="t").handles()[0]


def _as_spaced_table(broker, draft):
    return broker.send_table(_table(draft, spaced=True), topic="t").handles()[0]


_WAYS = [_alone, _together, _as_table, _as_spaced_table]


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("before", [_alone, _as_table])
def test_another_content_under_the_same_id_is_refused_and_the_same_is_a_repeat(small, before, way) -> None:
    first = before(small.broker, _FIRST)
    small.kill_and_open()
    for word, draft in _OTHERS.items():
        named = f"other {word.removeprefix('no ')}" if word.endswith("s") else f"another {word}"
        with pytest.raises(IdInUseError, match=f"'x' in topic 't' belongs to another message, with {named};"):
            way(small.broker, draft)
    assert way(small.broker, _FIRST) == first
    assert len(small.broker.views.pending()) == 1


@pytest.mark.parametrize("before", [_alone, _as_table])
def test_when_it_is_due_is_no_content(small, before) -> None:
    first = before(small.broker, _FIRST)
    for draft in _SAME.values():
        (answer,) = small.broker.send([draft])
        assert (answer.handle, answer.is_repeat) == (first, True)
    assert _as_table(small.broker, _SAME["later"]) == first


def test_after_the_hour_the_id_is_free(small) -> None:
    _alone(small.broker, _FIRST)
    small.clock.advance(HOUR_MS)
    assert _alone(small.broker, _OTHERS["body"]) != _alone(small.broker, Draft("u", b"", id="x", delay_ms=1))


def test_within_one_batch_too(small) -> None:
    other = _OTHERS["body"]
    first, again, wrong = small.broker.send_each([_FIRST, _SAME["later"], other])
    assert again.handle == first.handle
    assert isinstance(wrong, IdInUseError)
    with pytest.raises(IdInUseError):
        small.broker.send([replace(_FIRST, id="y"), replace(other, id="y")])
    rows = [replace(draft, id=name) for draft, name in ((_FIRST, "z"), (_FIRST, "w"), (other, "z"))]
    with pytest.raises(IdInUseError, match="row 2: id 'z'"):
        small.broker.send_table(_table(*rows), topic="t")
    assert len(small.broker.views.pending()) == 1


def test_the_first_wrong_row_is_named_and_nothing_of_its_frame_is_stored(small) -> None:
    small.broker.send([_FIRST, replace(_FIRST, id="y")])
    rows = [
        *(replace(_FIRST, id=name) for name in ("new", "x")),
        replace(_OTHERS["tag"], id="y"),
        replace(_OTHERS["body"], id="x"),
    ]
    end = small.log_end
    with pytest.raises(IdInUseError, match=r"row 2: id 'y' in topic 't' .* another tag; use"):
        small.broker.send_table(_table(*rows), topic="t")
    assert small.log_end == end


def test_in_a_later_frame_it_is_said_what_is_stored(small) -> None:
    small.send("t", b"one", id="x")
    count = FRAME_ROWS_MAX + 3
    ids = [f"n{number}" for number in range(count - 1)] + ["x"]
    table = pa.table({"body": [b"two"] * count, "id": ids})
    with pytest.raises(IdInUseError, match=r"row 65538: id 'x'.* first 65,536 of 65,539 rows are stored"):
        small.broker.send_table(table, topic="t")
    assert small.broker.store.totals.overall()[0] == FRAME_ROWS_MAX + 1


def test_once_by_key_keeps_the_first_whatever_the_second_holds(small) -> None:
    """The ids of rows that Spark schedules are made of the key and the time."""
    for way in (_alone, _as_table):
        first = replace(_FIRST, id=way.__name__, keys=(way.__name__,), once=Once.KEEP)
        handle = small.broker.send([first])[0].handle
        second = replace(first, body=b"two", tag="", properties={})
        (receipt,) = small.broker.send([second])
        assert (receipt.handle, receipt.is_repeat) == (handle, True)
        table = _table(second).append_column("once", [[True]])
        assert small.broker.send_table(table, topic="t").handles() == [handle]
        with pytest.raises(IdInUseError, match="other keys"):
            small.broker.send([replace(second, keys=("other",))])


def test_once_by_id_counts_for_ever_and_for_the_same_content(small) -> None:
    first = Draft("t", b"one", id="x", delay_ms=1, once=Once.KEEP)
    handle = _alone(small.broker, first)
    small.advance(5 * HOUR_MS)
    assert _alone(small.broker, replace(first, delay_ms=9)) == handle
    with pytest.raises(IdInUseError):
        small.broker.send([replace(first, body=b"two")])
    rows = pa.table({"body": [b"one"], "id": ["x"], "delay_ms": [7], "once": [True]})
    assert small.broker.send_table(rows, topic="t").handles() == [handle]
    with pytest.raises(IdInUseError, match="row 0: id 'x'"):
        small.broker.send_table(rows.set_column(0, "body", [[b"two"]]), topic="t")


def test_a_moved_message_is_still_the_same_and_so_is_a_released_one(small) -> None:
    first = _alone(small.broker, _FIRST)
    (moved,) = small.broker.reschedule([first], by_ms=500)
    assert _alone(small.broker, _FIRST) == moved.handle == _as_table(small.broker, _FIRST)
    small.advance(61_000)
    assert _alone(small.broker, _FIRST) == moved.handle
    with pytest.raises(IdInUseError):
        _alone(small.broker, _OTHERS["body"])


def test_a_half_with_the_id_of_another_message_is_refused(small) -> None:
    begin = small.broker.transactions.begin
    begin([Draft("t", b"one", id="x")])
    begin([Draft("t", b"one", id="x", delay_ms=5)])
    with pytest.raises(IdInUseError):
        begin([Draft("t", b"two", id="x")])


_DRAFTS = st.builds(
    Draft,
    topic=st.just("t"),
    body=st.sampled_from([b"", b"1", b"2"]),
    id=st.sampled_from("xyz"),
    keys=st.sampled_from([(), ("k",), ("l",)]),
    tag=st.sampled_from(["", "a"]),
    properties=st.sampled_from([{}, {"p": "1"}]),
    delay_ms=st.sampled_from([None, 7_200_000]),
)


@settings(
    deadline=None, max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(batches=st.lists(st.tuples(st.booleans(), st.lists(_DRAFTS, min_size=1, max_size=4)), max_size=6))
def test_every_way_agrees_with_a_dictionary(make_small, batches) -> None:
    small = make_small()
    known: dict[str, tuple] = {}
    for is_table, drafts in batches:
        contents = [(d.body, d.keys, d.tag, tuple(d.properties.items())) for d in drafts]
        if is_table:
            after = dict(known)
            right = all(after.setdefault(d.id, c) == c for d, c in zip(drafts, contents, strict=True))
            if right:
                small.broker.send_table(_table(*drafts), topic="t")
                known = after
            else:
                with pytest.raises(IdInUseError):
                    small.broker.send_table(_table(*drafts), topic="t")
            continue
        for answer, draft, content in zip(small.broker.send_each(drafts), drafts, contents, strict=True):
            assert isinstance(answer, SendResult) == (known.setdefault(draft.id, content) == content)
    assert small.broker.store.totals.overall()[0] == len(known)
