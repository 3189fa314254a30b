"""The batch wire form: there and back, and nothing but `RequestError` for what is not one."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.errors import IllegalTopicError, RequestError
from tidemill.core.model import Draft, Handle, Once, SendResult
from tidemill.core.send_answers import decode_answers, encode_answers
from tidemill.core.send_batch import decode_columns, encode_drafts, join_columns

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_DRAFTS = st.builds(
    Draft,
    topic=_TEXT,
    body=st.binary(max_size=20),
    deliver_at_ms=st.none() | st.integers(0, 1 << 50),
    delay_ms=st.none() | st.integers(0, 1 << 50),
    level=st.integers(0, 20),
    id=st.none() | _TEXT,
    keys=st.lists(_TEXT, max_size=3).map(tuple),
    tag=_TEXT,
    message_group=_TEXT,
    properties=st.dictionaries(_TEXT, _TEXT, max_size=2),
    once=st.sampled_from(Once),
    jitter_ms=st.sampled_from([0, 0, 0, 1, 30_000]),
)


@given(st.lists(_DRAFTS, max_size=5))
def test_drafts_come_back_as_they_went(drafts) -> None:
    assert decode_columns(encode_drafts(drafts)).drafts() == drafts


def test_what_all_messages_share_is_said_once() -> None:
    drafts = [Draft("t", b"12345", id=f"id-{number}", delay_ms=60_000) for number in range(3)]
    content = encode_drafts(drafts)
    length = struct.unpack_from("<4sI", content)[1]
    header = json.loads(content[8 : 8 + length])
    assert header == {"count": 3, "size": 5, "topics": ["t"], "delay": 60_000, "ids": "id-0id-1id-2"}
    assert decode_columns(content).drafts() == drafts


@pytest.mark.parametrize("odd", [True, 1.0])
def test_what_only_looks_the_same_is_not_said_once(odd) -> None:
    """What is refused alone is refused in company too."""
    for drafts in (
        [Draft("t", b"", delay_ms=odd)],
        [Draft("t", b"", delay_ms=1), Draft("t", b"", delay_ms=odd)],
    ):
        with pytest.raises(RequestError):
            decode_columns(encode_drafts(drafts)).drafts()


def test_more_than_may_share_are_written_down_each() -> None:
    drafts = [Draft("t", b"", id="a")] * 5_000
    assert decode_columns(encode_drafts(drafts)).drafts() == drafts


@given(st.lists(st.lists(_DRAFTS, max_size=4), max_size=4))
def test_requests_are_joined_in_their_order(requests) -> None:
    joined = join_columns([decode_columns(encode_drafts(drafts)) for drafts in requests])
    assert joined.drafts() == [draft for drafts in requests for draft in drafts]


def test_answers_come_back_as_they_went() -> None:
    drafts = [Draft("t", b"", id=name) for name in "abcdef"]
    answers = [
        SendResult("a", "t", Handle("B", "t", "a", 7), 1_000),
        SendResult("first", "t", Handle("B", "t", "first", 3), 500, is_repeat=True),
        SendResult("c", "t", None, None, note="clamped"),
        SendResult("d", "t", None, None, queue=0, offset=0),
        SendResult("e", "t", None, None, is_repeat=True, queue=3, offset=1 << 40),
        IllegalTopicError("no"),
    ]
    special = {
        "repeats": {1: "first", 4: "e"},
        "notes": {2: "clamped"},
        "errors": {5: [answers[5].code, "no"]},
    }
    content = encode_answers(
        "B",
        [7, 3, -1, -1, -1, -1],
        [1_000, 500, -1, -1, -1, -1],
        [-1, -1, -1, 0, 3, -1],
        [-1, -1, -1, 0, 1 << 40, -1],
        special,
    )
    found = decode_answers(content, drafts)
    assert found[:5] == answers[:5]
    assert isinstance(found[5], IllegalTopicError) and str(found[5]) == "no"


def test_answers_of_messages_that_all_wait_say_nothing_of_queues() -> None:
    drafts = [Draft("t", b"", id="a"), Draft("t", b"", id="b")]
    content = encode_answers("B", [7, 8], [1_000, 1_001], [-1, -1], [-1, -1])
    assert set(json.loads(content)) == {"broker", "seq", "due"}
    assert [(r.handle.seq, r.offset) for r in decode_answers(content, drafts)] == [(7, None), (8, None)]
    content = encode_answers("B", [7, -1], [1_000, -1], [-1, 2], [-1, 5])
    assert [(r.queue, r.offset) for r in decode_answers(content, drafts)] == [(None, None), (2, 5)]
    assert decode_answers(encode_answers("B", [], []), []) == []
    content = encode_answers("B", range(7, 9), [1_000, 1_000])
    assert json.loads(content) == {"broker": "B", "seq": 7, "due": 1_000}
    assert [(r.handle.seq, r.deliver_at_ms) for r in decode_answers(content, drafts)] == [
        (7, 1_000),
        (8, 1_000),
    ]
    content = encode_answers("B", range(7, 9), [1_000, 1_001])
    assert [(r.handle.seq, r.deliver_at_ms) for r in decode_answers(content, drafts)] == [
        (7, 1_000),
        (8, 1_001),
    ]


def test_a_request_with_jitter_is_one_that_older_brokers_refuse() -> None:
    plain, spread = Draft("t", b"", delay_ms=1), Draft("t", b"", delay_ms=1, jitter_ms=9)
    assert encode_drafts([plain])[:4] == b"TMB1"
    content = encode_drafts([plain, spread])
    assert content[:4] == b"TMB2"
    assert decode_columns(content).jitter == [0, 9]
    with pytest.raises(RequestError, match="'jitter' of the batch needs the magic TMB2"):
        decode_columns(b"TMB1" + content[4:])
    newer = _request({"size": [0], "topics": ["t"], "colour": [1]})
    assert len(decode_columns(newer)) == 1  # as it was before there was another magic
    with pytest.raises(RequestError, match="unknown batch column 'colour': upgrade the broker"):
        decode_columns(b"TMB2" + newer[4:])


@pytest.mark.parametrize(
    ("jitter", "says"),
    [
        (None, ""),
        ([None], ": null in row 0 is not possible; use a whole number below 9007199254740992"),
        (["5"], ': "5" in row 0 is not possible; use a whole number'),
        ([True], ": true in row 0 is not possible; use a whole number"),
        ([1 << 60], ": 1152921504606846976 in row 0 is not possible; use a whole number"),
        (1 << 60, ": 1152921504606846976 in row 0 is not possible; use a whole number"),
        ([1, 2], " has length 2; use 1, one value per message"),
    ],
)
def test_a_jitter_that_is_no_number_is_no_column(jitter, says) -> None:
    content = _request({"size": [0], "topics": ["t"], "delay": [5], "jitter": jitter})
    if jitter is None:
        assert decode_columns(b"TMB2" + content[4:]).jitter is None
        return
    with pytest.raises(RequestError, match=f"column 'jitter' of the batch{says}"):
        decode_columns(b"TMB2" + content[4:])


def _request(header: object, bodies: bytes = b"") -> bytes:
    content = json.dumps(header).encode()
    return struct.pack("<4sI", b"TMB1", len(content)) + content + bodies


@pytest.mark.parametrize(
    "header",
    [
        [],
        {},
        {"size": 3},
        {"size": [-1], "topics": ["t"]},
        {"size": [True], "topics": ["t"]},
        {"size": [2], "topics": ["t"]},
        {"size": [0], "topics": []},
        {"size": [0], "topics": [1]},
        {"size": [0], "topics": ["t"], "topic": [1]},
        {"size": [0], "topics": ["t"], "id": [1]},
        {"size": [0], "topics": ["t"], "id": []},
        {"size": [0], "topics": ["t"], "due": [1.5]},
        {"size": [0], "topics": ["t"], "due": [1 << 60]},
        {"size": [0], "topics": ["t"], "keys": [["a", 1]]},
        {"size": [0], "topics": ["t"], "props": [{"a": 1}]},
        {"size": [0], "topics": ["t"], "once": ["never"]},
        {"size": [0], "topics": ["t"], "once": [[]]},
        {"size": 0, "topics": ["t"]},
        {"size": 0, "count": -1, "topics": ["t"]},
        {"size": 0, "count": True, "topics": ["t"]},
        {"size": 0, "count": 1 << 40, "topics": ["t"]},
        {"size": -1, "count": 1, "topics": ["t"]},
        {"size": 2, "count": 1, "topics": ["t"]},
        {"size": 1 << 80, "count": 1, "topics": ["t"]},
        {"size": True, "count": 0, "topics": ["t"]},
        {"size": 0, "count": 4097, "topics": ["t"]},
        {"size": [0, 0], "count": 5, "topics": ["t"]},
        {"size": "", "count": 3, "topics": ["t"]},
        {"size": {}, "count": 3, "topics": ["t"]},
        {"count": 3, "topics": ["t"]},
        {"size": 0, "count": 2, "topics": ["t"], "ids": "abc"},
        {"size": 0, "count": 2, "topics": ["t"], "ids": ["a", "b"]},
        {"size": 0, "count": 0, "topics": [], "ids": "a"},
        {"size": 0, "count": 1, "topics": ["t"], "delay": 1 << 60},
        {"size": 0, "count": 1, "topics": ["t"], "due": -(1 << 60)},
        {"size": 0, "count": 1, "topics": ["t"], "level": 3},
        {"size": 0, "count": 1, "topics": ["t"], "delay": True},
    ],
)
def test_a_wrong_shape_is_refused(header) -> None:
    with pytest.raises(RequestError):
        decode_columns(_request(header)).drafts()


@given(st.binary(max_size=60))
def test_garbage_is_refused(data) -> None:
    with pytest.raises(RequestError):
        decode_columns(data).drafts()


@given(st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda c: st.lists(c, max_size=3)))
def test_any_column_is_taken_or_refused(value) -> None:
    for name in (
        *("size", "count", "topics", "topic", "ids", "id", "due", "delay", "level"),
        *("keys", "tag", "props", "once"),
    ):
        for sized in ({"size": [0]}, {"size": 0, "count": 1}):
            try:
                decode_columns(_request({**sized, "topics": ["t"], name: value})).drafts()
            except RequestError:
                continue
