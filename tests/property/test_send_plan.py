"""The planner of sends against the reference, which stores message by message: random mixed batches.

Both must give the same answers, write the same messages to the log and put the same ones into the queues.
What differs on purpose (decision 43), and is left out here or made equal:

- A send made once repeats the oldest message with its key, whether that is stored or comes earlier in the
  batch, and its id is looked at before its key. The reference looks at the batch first, at the last message.
- A send that is refused whole makes no topic and takes no turn at the queues.
- The near set and the level queues take the first rows of a batch that they have space for. The reference
  does not count the messages of the same batch. Neither moves a message into a near set that is full.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_sender
from helpers.hypothesis_examples import examples
from helpers.small_broker import SmallBroker
from reference_sender import ReferenceSender
from tidemill.broker.send import plan as plan_module
from tidemill.core.errors import RequestError, TidemillError
from tidemill.core.model import Draft, Handle, Once, SendResult, TopicType
from tidemill.core.send_batch import decode_columns, encode_drafts
from tidemill.store.formats.frames import Kind
from tidemill.store.formats.message_format import Section

_HOUR_MS = 3_600_000
_BAD = [
    {"id": "two words"},
    {"keys": ("two words",)},
    {"tag": "a|b"},
    {"delay_ms": -1},
    {"delay_ms": 5, "deliver_at_ms": 5},
    {"properties": {"": "x"}},
    {"message_group": "g\n"},
    {"level": -1},
    {"once": Once.KEEP, "id": None},
    {"jitter_ms": 5, "delay_ms": None},
    {"topic": "no such name!"},
    {"topic": "normal", "delay_ms": 7},
    {"topic": "delayed", "delay_ms": None},
    {"body": "text"},
    {"body": bytearray(b"as bytes")},
    {"has_made_id": True},
]


@st.composite
def _drafts(draw) -> Draft:
    """Few ids and keys, so that many repeat."""
    draft = Draft(
        draw(st.sampled_from(["orders", "orders", "bills", "new"])),
        draw(st.sampled_from([b"", b"1", b"2"])),
        id=draw(st.sampled_from("abcdefgh")),
        delay_ms=draw(st.sampled_from([None, 0, 10, 29_999, 30_000, 60_000, 60_100, _HOUR_MS])),
        tag=draw(st.sampled_from(["", "", "tag"])),
        born_at_ms=draw(st.sampled_from([None, 7])),
    )
    kind = draw(
        st.sampled_from(["plain", "plain", "keys", "once", "level", "group", "jitter", "made", "bad"])
    )
    match kind:
        case "keys":
            draft = replace(draft, keys=draw(st.sampled_from([("k",), ("k", "l"), ("m",)])))
        case "once":
            once = draw(st.sampled_from([Once.KEEP, Once.REPLACE]))
            key = draw(st.sampled_from("kmn"))
            draft = replace(draft, keys=(key,), once=once, id=None)
        case "level":
            draft = replace(draft, delay_ms=None, level=draw(st.sampled_from([1, 3, 99])))
        case "group":
            draft = replace(draft, message_group=draw(st.sampled_from("gh")))
        case "jitter":
            draft = replace(draft, delay_ms=draft.delay_ms or 0, jitter_ms=draw(st.sampled_from([1, 90_000])))
        case "made":
            draft = replace(draft, has_made_id=True, properties={"p": draw(st.sampled_from("xy"))})
        case "bad":
            draft = replace(draft, **draw(st.sampled_from(_BAD)))
    return draft


def _with_keys_once(drafts: list[Draft]) -> list[Draft]:
    """The drafts without those whose key came before in the batch: see the top of the file."""
    seen: dict[tuple[str, str], int] = {}
    kept = []
    for draft in drafts:
        names = [(draft.topic, key) for key in draft.keys]
        if all(seen.get(name, 0) < 1 for name in names):
            kept.append(draft)
            seen.update((name, seen.get(name, 0) + 1) for name in names)
    return kept


def _said(answer) -> object:
    if not isinstance(answer, SendResult):
        assert isinstance(answer, TidemillError)
        return type(answer), str(answer)
    seq = None if answer.handle is None else answer.handle.seq
    name = "made" if len(answer.id) == 24 else answer.id
    return name, seq, answer.deliver_at_ms, answer.queue, answer.offset, answer.is_repeat, answer.note


def _stored(small) -> list[object]:
    log = small.broker.store.log
    frames = [f for f in log.frames(log.head, log.written_end) if f.kind in (Kind.MESSAGES, Kind.RE_ENTER)]
    found = []
    for frame in frames:
        if frame.kind == Kind.MESSAGES:
            section = Section(frame.payload)
            messages = [m if len(m.id) < 24 else replace(m, id="made") for m in section.messages()]
            found.append((messages, section.first_seq))
    return found


def _pair(directory: Path, **settings_of) -> list[SmallBroker]:
    pair = [SmallBroker(directory / name, **settings_of) for name in ("planned", "reference")]
    for small in pair:
        small.broker.topics.create("orders")
        small.broker.topics.create("bills")
        small.broker.topics.create("normal", TopicType.NORMAL)
        small.broker.topics.create("delayed", TopicType.DELAY)
    return pair


_SETTINGS = settings(deadline=None, max_examples=examples(40))


@_SETTINGS
@given(
    batches=st.lists(
        st.tuples(st.sampled_from(["each", "all", "columns", "table"]), st.lists(_drafts(), max_size=12)),
        max_size=5,
    ),
    limit=st.sampled_from([0, 0, 2]),
    is_full=st.sampled_from([False, False, True]),
)
def test_the_plan_is_what_the_reference_does(batches, limit, is_full) -> None:
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as directory:
        if is_full:  # the near set is
            patch.setattr(plan_module, "NEAR_COUNT_MAX", 0)
            patch.setattr(reference_sender, "NEAR_COUNT_MAX", 0)
        pair = _pair(Path(directory), due_per_tick_max=limit)
        try:
            _compare(pair, batches)
            pair[0].check()
        finally:
            for small in pair:
                small.close()


def _compare(pair, batches) -> None:
    planned, reference = pair
    oracle = ReferenceSender(reference.broker)
    for way, drafts in batches:
        drafts = _with_keys_once(drafts)
        if way == "columns":
            drafts = [_as_it_travels(draft) for draft in drafts]
            columns = decode_columns(encode_drafts(drafts))
            (answers,) = planned.broker.send_columns([columns])
            found = answers.results(planned.broker.id, [draft.topic for draft in drafts])
            wanted = oracle.send_each(drafts)
        elif way == "each":
            found, wanted = planned.broker.send_each(drafts), oracle.send_each(drafts)
        elif way == "table":
            drafts = [draft for draft in map(_as_row, drafts) if draft is not None]
            found = _all_or_none(lambda rows: _results(planned.broker, rows), drafts)
            wanted = _all_or_none(oracle.send, drafts)
        else:
            drafts = [replace(draft, topic="orders") if draft.topic == "new" else draft for draft in drafts]
            found = _all_or_none(planned.broker.send, drafts)
            wanted = _all_or_none(oracle.send, drafts)
        if isinstance(wanted, TidemillError):
            assert isinstance(found, TidemillError)
            reference.broker.topics._turns = dict(planned.broker.topics._turns)
        else:
            if way == "table":  # whose results say nothing of queues
                wanted = [replace(result, queue=None, offset=None) for result in wanted]
            assert [_said(answer) for answer in found] == [_said(answer) for answer in wanted]
        for small in (planned, reference):
            small.advance(15)
    assert _stored(planned) == _stored(reference)
    for small in (planned, reference):
        small.advance(2 * _HOUR_MS)
    for topic in ("orders", "bills", "new"):
        there = [small.broker.store.topics.named(topic) is not None for small in (planned, reference)]
        assert there[0] == there[1]
        if all(there):
            rows = [
                [replace(row, id="made") if len(row.id) == 24 else row for row in small.in_topic(topic)]
                for small in (planned, reference)
            ]
            assert rows[0] == rows[1]


def _as_it_travels(draft: Draft) -> Draft:
    """What of a draft the wire format carries."""
    body = draft.body.encode() if isinstance(draft.body, str) else bytes(draft.body)
    return replace(draft, born_at_ms=None, has_made_id=False, carried={}, body=body)


def _as_row(draft: Draft) -> Draft | None:
    """What of a draft a table can hold; None if it cannot be in one."""
    if draft.once is Once.REPLACE or len(draft.keys) > 1 or {"", None} & {draft.id, draft.topic}:
        return None
    return _as_it_travels(replace(draft, topic="orders" if draft.topic == "new" else draft.topic))


def _results(broker, drafts: list[Draft]) -> list[SendResult]:
    """The results of a table with these rows."""
    columns = {
        "topic": pa.array([draft.topic for draft in drafts], pa.string()),
        "body": pa.array([draft.body for draft in drafts], pa.binary()),
        "id": pa.array([draft.id for draft in drafts], pa.string()),
        "key": pa.array([" ".join(draft.keys) for draft in drafts], pa.string()),
        "once": pa.array([draft.once is Once.KEEP for draft in drafts], pa.bool_()),
        "tag": pa.array([draft.tag for draft in drafts], pa.string()),
        "message_group": pa.array([draft.message_group for draft in drafts], pa.string()),
        "properties": pa.array([json.dumps(dict(draft.properties)) for draft in drafts], pa.string()),
        "level": pa.array([draft.level for draft in drafts], pa.int64()),
        "jitter_ms": pa.array([draft.jitter_ms for draft in drafts], pa.int64()),
        "delay_ms": pa.array([draft.delay_ms for draft in drafts], pa.int64()),
    }
    if any(draft.deliver_at_ms is not None for draft in drafts):
        raise RequestError("a table has one column of times")
    given = broker.send_table(pa.table(columns))
    notes = [""] * len(drafts) if given.notes is None else given.notes.to_pylist()
    return [
        SendResult(
            message_id,
            topic,
            None if due_ms < 0 else Handle(broker.id, topic, message_id, seq),
            None if due_ms < 0 else due_ms,
            is_repeat,
            note,
        )
        for message_id, topic, seq, due_ms, is_repeat, note in zip(
            given.ids.to_pylist(),
            given.topics.to_pylist(),
            given.seqs.tolist(),
            given.deliver_at_ms.tolist(),
            given.is_repeat.tolist(),
            notes,
            strict=True,
        )
    ]


def _all_or_none(send, drafts: list[Draft]) -> list[SendResult] | RequestError:
    try:
        return send(drafts)
    except TidemillError as error:
        return error
