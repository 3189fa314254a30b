"""Sends in columns: whatever way they take, the log holds and the caller hears what the sender would say."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from reference_sender import ReferenceSender
from tidemill.broker.send.answers import Answers
from tidemill.core.model import Draft, Once, SendResult, TopicType
from tidemill.core.send_batch import decode_columns, encode_drafts
from tidemill.store.formats.frames import Kind
from tidemill.store.formats.message_format import Section

HOUR_MS = 3_600_000
# What may be odd about a message, and how: most of these are refused, all of them are not plain.
_ODDITIES = [
    {"id": "has a blank"},
    {"id": "x" * 129},
    {"id": "again"},
    {"keys": ("two words",)},
    {"keys": ("k",) * 17},
    {"tag": "a|b"},
    {"delay_ms": 4_000 * 24 * HOUR_MS},
    {"delay_ms": 5, "deliver_at_ms": 7},
    {"delay_ms": -1},
    {"properties": {"": "no name"}},
    {"topic": "no such topic yet"},
    {"topic": "new"},
    {"topic": "normal", "delay_ms": 1_000},
    {"message_group": "g"},
    {"level": 3},
    {"jitter_ms": 5},
    {"delay_ms": 5, "jitter_ms": -5},
    {"delay_ms": 5, "jitter_ms": 4_000 * 24 * HOUR_MS},
    {"delay_ms": 5, "jitter_ms": 5, "message_group": "g"},
    {"level": 3, "jitter_ms": 5},
    {"once": Once.KEEP, "keys": ("once",), "delay_ms": HOUR_MS},
    {"body": bytes(5 << 20)},
]


def _draft(chance: random.Random, number: int) -> Draft:
    fields = {
        "topic": chance.choice(["orders", "orders", "bills"]),
        "body": chance.randbytes(chance.randrange(40)),
        "id": f"ID{number:06d}" + "é" * (chance.random() < 0.1),
    }
    if chance.random() < 0.7:
        name = chance.choice(["delay_ms", "deliver_at_ms"])
        fields[name] = chance.choice([0, 3 if name == "delay_ms" else -3, 10, 29_998, 30_000, HOUR_MS])
        if chance.random() < 0.2:
            fields["jitter_ms"] = chance.choice([1, 100, HOUR_MS])
    if chance.random() < 0.3:
        fields["keys"] = chance.choice([("k1",), ("k1", "schlüssel")])
    if chance.random() < 0.3:
        fields["tag"] = "tag"
    if chance.random() < 0.2:
        fields["properties"] = {"a": "ä\n", "b": ""}
    return Draft(**fields)


def _requests(chance: random.Random, first: int) -> list[list[Draft]]:
    requests = [[_draft(chance, first + 100 * r + i) for i in range(chance.randrange(20))] for r in range(3)]
    if chance.random() < 0.5:
        request = chance.choice(requests)
        if request:
            at = chance.randrange(len(request))
            fields = {name: getattr(request[at], name) for name in ("topic", "body", "id")}
            request[at] = Draft(**{**fields, **chance.choice(_ODDITIES)})
    return requests


def _said(answer) -> object:
    if not isinstance(answer, SendResult):
        return answer.code, str(answer)
    seq = -1 if answer.handle is None else answer.handle.seq
    return seq, answer.deliver_at_ms, answer.queue, answer.offset, answer.is_repeat


def _all_said(answers) -> list[object]:
    if isinstance(answers, Answers):
        answers = answers.results("B", ["t"] * answers.count)
    return [_said(answer) for answer in answers]


def _stored(small) -> list[object]:
    log = small.broker.store.log
    sections = [
        Section(frame.payload)
        for frame in log.frames(log.head, log.written_end)
        if frame.kind == Kind.MESSAGES
    ]
    return [(message, section.first_seq) for section in sections for message in section.messages()]


def _the_senders_way(small, drafts: list[Draft]) -> list[object]:
    return ReferenceSender(small.broker).send_each(drafts)


@pytest.mark.parametrize("seed", range(4))
def test_either_way_stores_and_answers_the_same(make_small, seed) -> None:
    chance = random.Random(seed)
    ways = [make_small(), make_small()]
    for small in ways:
        for name in ("orders", "bills"):
            small.broker.topics.create(name)
        small.broker.topics.create("normal", TopicType.NORMAL)
    for turn in range(25):
        requests = _requests(chance, 1_000 * turn)
        columns = [decode_columns(encode_drafts(request)) for request in requests]
        found = ways[0].broker.send_columns(columns)
        wanted = _the_senders_way(ways[1], [draft for request in requests for draft in request])
        assert [said for answers in found for said in _all_said(answers)] == [_said(a) for a in wanted]
        for small in ways:
            small.advance(10)
    assert _stored(ways[0]) == _stored(ways[1])
    for topic in ("orders", "bills", "normal"):
        assert ways[0].in_topic(topic) == ways[1].in_topic(topic)


@pytest.mark.parametrize("seed", range(4))
def test_drafts_are_stored_and_answered_the_same(make_small, seed) -> None:
    chance = random.Random(100 + seed)
    ways = [make_small(), make_small()]
    for small in ways:
        for name in ("orders", "bills"):
            small.broker.topics.create(name)
        small.broker.topics.create("normal", TopicType.NORMAL)
    for turn in range(25):
        drafts = [draft for request in _requests(chance, 1_000 * turn) for draft in request]
        drafts = [replace(d, born_at_ms=1_000) if chance.random() < 0.3 else d for d in drafts]
        found = ways[0].broker.send_each(drafts)
        wanted = _the_senders_way(ways[1], drafts)
        assert [_said(answer) for answer in found] == [_said(answer) for answer in wanted]
        told = [
            [(a.id, a.offset) for a in answers if isinstance(a, SendResult)] for answers in (found, wanted)
        ]
        assert told[0] == told[1]
        for small in ways:
            small.advance(10)
    assert _stored(ways[0]) == _stored(ways[1])
    for topic in ("orders", "bills", "normal"):
        assert ways[0].in_topic(topic) == ways[1].in_topic(topic)


@pytest.mark.parametrize(
    "odd",
    [
        {"deliver_at_ms": 1.5},
        {"deliver_at_ms": 1 << 70},
        {"delay_ms": True},
        {"body": "text"},
        {"body": bytearray(b"fine")},
        {"id": 7},
        {"id": None},
        {"tag": None},
        {"keys": "text"},
        {"keys": (7,)},
        {"properties": {"a": 7}},
        {"properties": None},
        {"born_at_ms": "now"},
        {"topic": None},
        {"once": None},
        {"level": "3"},
        {"message_group": None},
    ],
    ids=str,
)
def test_among_many_ordinary_drafts_an_odd_one_is_answered_as_it_would_be_alone(make_small, odd) -> None:
    drafts = [Draft("orders", b"x", delay_ms=HOUR_MS, id=f"id-{number}") for number in range(20)]
    drafts[7] = replace(drafts[7], **({"delay_ms": None} | odd))
    ways = [make_small(), make_small()]
    for small in ways:
        small.broker.topics.create("orders")
    found = ways[0].broker.send_each(drafts)
    wanted = _the_senders_way(ways[1], drafts)
    assert [_said(answer) for answer in found] == [_said(answer) for answer in wanted]
    assert sum(isinstance(answer, SendResult) for answer in found) >= 19


def test_a_request_that_is_sent_again_is_stored_once(small) -> None:
    small.broker.topics.create("orders")
    columns = decode_columns(
        encode_drafts([Draft("orders", b"x", delay_ms=HOUR_MS, id=f"id-{number}") for number in range(20)])
    )
    (first,) = small.broker.send_columns([columns])
    (again,) = small.broker.send_columns([columns])
    assert again.is_repeat.tolist() == [True] * 20
    assert again.seqs.tolist() == list(first.seqs)
    assert small.broker.status().pending == 20


@pytest.mark.parametrize("delay_ms", [HOUR_MS, 5, 0, None], ids=["far", "near", "due", "untimed"])
@pytest.mark.parametrize("count", [1, 2, 33])
def test_messages_that_share_their_time_are_stored_as_alone(make_small, delay_ms, count) -> None:
    ways = [make_small(), make_small()]
    drafts = [
        Draft("orders", bytes(number), delay_ms=delay_ms, id=f"{number:04d}") for number in range(count)
    ]
    for small in ways:
        small.broker.topics.create("orders")
    (found,) = ways[0].broker.send_columns([decode_columns(encode_drafts(drafts))])
    assert _all_said(found) == [_said(answer) for answer in _the_senders_way(ways[1], drafts)]
    assert _stored(ways[0]) == _stored(ways[1])
    for small in ways:
        small.advance(10)
    received = [
        sorted(delivery.message.id for delivery in small.broker.receive("orders", "g", count=64))
        for small in ways
    ]
    assert received[0] == received[1] == ([] if delay_ms == HOUR_MS else sorted(draft.id for draft in drafts))


def test_what_is_not_stored_takes_no_turn_at_the_queues(make_small) -> None:
    ways = [make_small(), make_small()]
    first, later = ([Draft("orders", b"x", id=f"{name}{number}") for number in range(3)] for name in "ab")
    for small in ways:
        small.broker.topics.create("orders")
    for drafts in (first, first, later):
        (found,) = ways[0].broker.send_columns([decode_columns(encode_drafts(drafts))])
        assert _all_said(found) == [_said(answer) for answer in _the_senders_way(ways[1], drafts)]
