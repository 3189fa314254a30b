"""Messages as bytes: two encodings, one meaning; golden files for every kind of frame."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.errors import CorruptionError
from tidemill.core.model import PLACEMENTS_MAX, MessageType, StoredMessage
from tidemill.store.find.hashing import id_hash, key_hash
from tidemill.store.formats.frame_contents import section_in
from tidemill.store.formats.frames import (
    RELEASE_GROUP,
    Base,
    Cancel,
    End,
    Gap,
    Half,
    Kind,
    ReEnter,
    ReEnterReason,
    Release,
    SendBack,
    Settlement,
    TopicChange,
)
from tidemill.store.formats.message_format import Section, arrow_batch, arrow_parts
from tidemill.store.formats.request_format import Request
from tidemill.store.formats.rows import encode_messages

GOLDEN = Path(__file__).parents[2] / "golden"

_TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), max_size=12)
_KEY = _TEXT.filter(bool)
_MS = st.integers(-1, 1 << 50)
_MESSAGES = st.builds(
    StoredMessage,
    id=_KEY,
    topic_id=st.integers(1, 2**32 - 1),
    queue_id=st.integers(0, 1023),
    type=st.sampled_from(MessageType),
    level=st.integers(0, 18),
    flags=st.integers(0, 7),
    tag=_TEXT,
    keys=st.lists(_KEY, max_size=3).map(tuple),
    message_group=_TEXT,
    born_at_ms=_MS,
    stored_at_ms=_MS,
    deliver_at_ms=_MS,
    properties=st.dictionaries(
        _TEXT, st.text(st.characters(exclude_categories=["Cs"]), max_size=9), max_size=3
    ),
    body=st.binary(max_size=60),
)


def _section(parts) -> Section:
    return Section(memoryview(b"".join(bytes(part) for part in parts)))


def _both(messages, offsets, first_seq=7):
    rows = _section([encode_messages(messages, offsets, first_seq)])
    arrow = _section(arrow_parts(arrow_batch(messages, offsets), first_seq))
    return rows, arrow


@given(st.lists(_MESSAGES, max_size=6), st.integers(0, 1 << 40))
def test_messages_come_back_as_they_went_in_either_encoding(messages, first_seq):
    offsets = [i - 1 for i in range(len(messages))]
    for section in _both(messages, offsets, first_seq):
        assert (section.count, section.first_seq) == (len(messages), first_seq)
        assert section.messages() == messages
        assert [section.identity(row) for row in range(len(messages))] == [
            (m.id, m.stored_at_ms) for m in messages
        ]
        assert section.to_arrow().column("queue_offset").to_pylist() == offsets


@given(st.lists(_MESSAGES, max_size=6))
def test_both_encodings_have_equal_columns(messages):
    offsets = list(range(len(messages)))
    rows, arrow = (section.columns() for section in _both(messages, offsets))
    for name in rows.__dataclass_fields__:
        assert getattr(rows, name).tolist() == getattr(arrow, name).tolist(), name
    assert rows.id_hash.tolist() == [id_hash(m.topic_id, m.id) for m in messages]
    keyed = [(i, key_hash(m.topic_id, key)) for i, m in enumerate(messages) for key in m.keys]
    assert list(zip(rows.key_rows.tolist(), rows.key_hashes.tolist(), strict=True)) == keyed
    assert rows.timed_rows.tolist() == [i for i, m in enumerate(messages) if m.deliver_at_ms != -1]


@given(st.lists(_MESSAGES, min_size=3, max_size=8), st.data())
def test_a_slice_of_an_arrow_batch_is_stored_alone(messages, data):
    start = data.draw(st.integers(0, len(messages) - 1))
    batch = arrow_batch(messages, range(len(messages))).slice(start)
    section = _section(arrow_parts(batch, 0))
    assert section.messages() == messages[start:]
    alone = _both(messages[start:], range(start, len(messages)))[0]
    assert section.columns().id_hash.tolist() == alone.columns().id_hash.tolist()


def test_an_unknown_encoding_is_corruption():
    with pytest.raises(CorruptionError, match="unknown encoding 9"):
        Section(memoryview(bytes([9]) + bytes(15)))


# -- golden files ---------------------------------------------------------------------------------

_MESSAGE = StoredMessage(
    id="order-17",
    topic_id=3,
    queue_id=1,
    type=MessageType.DELAY,
    level=4,
    flags=5,
    tag="tag",
    keys=("k1", "ключ"),
    message_group="group",
    born_at_ms=1_800_000_000_000,
    stored_at_ms=1_800_000_000_001,
    deliver_at_ms=1_800_000_009_000,
    properties={"a": "b", "ü": "ö"},
    body=b"\x00body\xff",
)
_DIRECT = StoredMessage("d", 4, 0, MessageType.NORMAL, 0, 0, "", (), "", 1, 2, -1, {}, b"")
_TOPIC = {
    "id": 3,
    "name": "orders",
    "type": "mixed",
    "queue_count": 2,
    "is_paused": False,
    "release_rate_max": 0,
}


_GAP = Gap(99, 104, [(3, 1, 40, 42)], {"by_topic": {"3": [9, 8, 1]}, "moved": 2, "next_topic_id": 5})


def _payloads():
    rows = [encode_messages([_MESSAGE, _DIRECT], [-1, 12], 99)]
    section = _section(rows)
    groups = np.array([(3, 1, 0, 40, 2), (4, 0, 0, 7, 1)], RELEASE_GROUP)
    release = Release(
        groups,
        np.array([5, 6, 9]),
        np.array([1, 2, 1], np.uint8),
        np.zeros(3, np.uint16),
        np.array([0, 2], np.uint32),
        None,
        rows,
    )
    return {
        Kind.BASE: Base(
            99, [_TOPIC], {"3": [40, 41]}, {"by_topic": {"3": [9, 8, 1]}, "moved": 2, "next_topic_id": 5}
        ),
        Kind.RELEASE: release,
        Kind.CANCEL: Cancel(
            np.array([4, 1 << 40, 7]), np.array([3, 4], np.uint32), np.array([2, 1], np.uint32)
        ),
        Kind.RE_ENTER: ReEnter(ReEnterReason.RETENTION, np.array([11, 12]), section, rows),
        Kind.HALF: Half(np.array([0, 77 << 16], np.uint64), section, rows),
        Kind.END: End(77 << 16, section, rows),
        Kind.TOPIC: TopicChange(_TOPIC, True, 500, 3),
        Kind.SEND_BACK: SendBack([Settlement("g", 3, 1, 40), Settlement("g", 4, 0, 9)], section, rows),
    }


def _with_requests():
    """The frames that have a request id."""
    rows, indexes = np.array([0, 2, 5], np.uint32), np.array([1, 0, 1], np.uint32)
    cancel = Request(bytes(range(16)), 0x1122334455667788, rows=rows)
    move = Request(bytes(range(16, 32)), 1 << 63, 2, 3, 1024, rows, indexes)
    payloads = _payloads()
    return {
        Kind.CANCEL: replace(payloads[Kind.CANCEL], request=cancel),
        Kind.RE_ENTER: replace(payloads[Kind.RE_ENTER], reason=ReEnterReason.RESCHEDULE, request=move),
    }


def golden_bytes() -> dict[str, bytes]:
    files = {
        "store-rows-1.bin": encode_messages([_MESSAGE, _DIRECT], [-1, 12], 99),
        "store-arrow-1.bin": b"".join(
            bytes(p) for p in arrow_parts(arrow_batch([_MESSAGE, _DIRECT], [-1, 12]), 99)
        ),
        "store-end-rollback-1.bin": b"".join(bytes(p) for p in End(77 << 16, None).parts()),
    }
    rolled = replace(_payloads()[Kind.RELEASE], placements=np.array([0, 1, 2434], np.uint16))
    assert rolled.version == 2
    files["store-release-2.bin"] = b"".join(bytes(part) for part in rolled.parts())
    for kind, payload in _with_requests().items():
        assert payload.version == 3
        name = kind.name.lower().replace("_", "-")
        files[f"store-{name}-3.bin"] = b"".join(bytes(part) for part in payload.parts())
    files["store-gap-3.bin"] = b"".join(bytes(part) for part in _GAP.parts())
    for kind, payload in _payloads().items():
        name = kind.name.lower().replace("_", "-")
        files[f"store-{name}-1.bin"] = b"".join(bytes(part) for part in payload.parts())
    return files


@pytest.mark.parametrize("name", sorted(golden_bytes()))
def test_frames_lie_on_disk_as_they_always_did(name):
    if name == "store-arrow-1.bin":
        # Arrow may pad or order its own header differently in another version; it must read the old one.
        section = Section(memoryview((GOLDEN / name).read_bytes()))
        assert section.messages() == [_MESSAGE, _DIRECT]
        return
    assert golden_bytes()[name] == (GOLDEN / name).read_bytes()


def _golden(kind: Kind) -> memoryview:
    return memoryview((GOLDEN / f"store-{kind.name.lower().replace('_', '-')}-1.bin").read_bytes())


def test_golden_frames_read_back():
    assert Base.read(_golden(Kind.BASE)) == _payloads()[Kind.BASE]
    assert TopicChange.read(_golden(Kind.TOPIC)) == _payloads()[Kind.TOPIC]
    release = Release.read(_golden(Kind.RELEASE))
    assert release.placements.tolist() == [0, 0, 0]  # written before rolls were counted
    rolled = Release.read(memoryview((GOLDEN / "store-release-2.bin").read_bytes()))
    assert rolled.placements.tolist() == [0, 1, 2434]
    assert (rolled.seqs.tolist(), rolled.section.messages()) == ([5, 6, 9], [_MESSAGE, _DIRECT])
    assert (release.seqs.tolist(), release.via.tolist(), release.value_indexes.tolist()) == (
        [5, 6, 9],
        [1, 2, 1],
        [0, 2],
    )
    assert release.groups.tolist() == [(3, 1, 0, 40, 2), (4, 0, 0, 7, 1)]
    cancel = Cancel.read(_golden(Kind.CANCEL))
    assert (cancel.seqs.tolist(), cancel.topic_ids.tolist(), cancel.counts.tolist()) == (
        [4, 1 << 40, 7],
        [3, 4],
        [2, 1],
    )
    moved = ReEnter.read(_golden(Kind.RE_ENTER))
    assert (moved.reason, moved.old_seqs.tolist()) == (ReEnterReason.RETENTION, [11, 12])
    assert Half.read(_golden(Kind.HALF)).replaces.tolist() == [0, 77 << 16]
    assert End.read(_golden(Kind.END)).half_place == 77 << 16
    assert End.read(memoryview((GOLDEN / "store-end-rollback-1.bin").read_bytes())).section is None
    assert list(SendBack.read(_golden(Kind.SEND_BACK)).settles) == [
        Settlement("g", 3, 1, 40),
        Settlement("g", 4, 0, 9),
    ]
    assert Gap.read(memoryview((GOLDEN / "store-gap-3.bin").read_bytes())) == _GAP
    for kind in (Kind.RELEASE, Kind.RE_ENTER, Kind.HALF, Kind.END, Kind.SEND_BACK):
        assert section_in(kind, _golden(kind)).messages() == [_MESSAGE, _DIRECT]


def test_golden_frames_with_a_request_read_back():
    cancel = Cancel.read(memoryview((GOLDEN / "store-cancel-3.bin").read_bytes()))
    assert (cancel.seqs.tolist(), cancel.counts.tolist()) == ([4, 1 << 40, 7], [2, 1])
    assert cancel.request is not None
    assert (cancel.request.id, cancel.request.fingerprint) == (bytes(range(16)), 0x1122334455667788)
    assert (cancel.request.part, cancel.request.parts, cancel.request.done) == (1, 1, 0)
    assert (cancel.request.rows.tolist(), cancel.request.indexes.tolist()) == ([0, 2, 5], [])
    moved = ReEnter.read(memoryview((GOLDEN / "store-re-enter-3.bin").read_bytes()))
    assert (moved.reason, moved.old_seqs.tolist()) == (ReEnterReason.RESCHEDULE, [11, 12])
    assert moved.section.messages() == [_MESSAGE, _DIRECT]
    assert moved.request is not None
    assert (moved.request.part, moved.request.parts, moved.request.done) == (2, 3, 1024)
    assert (moved.request.rows.tolist(), moved.request.indexes.tolist()) == ([0, 2, 5], [1, 0, 1])
    assert Cancel.read(_golden(Kind.CANCEL)).request is ReEnter.read(_golden(Kind.RE_ENTER)).request is None


_U32 = st.integers(0, (1 << 32) - 1)


@given(
    st.binary(min_size=16, max_size=16),
    st.integers(0, (1 << 64) - 1),
    st.tuples(_U32, _U32, st.integers(0, (1 << 64) - 1)),
    st.lists(st.tuples(_U32, _U32), max_size=9),
    st.booleans(),
    st.booleans(),
)
def test_requests_of_any_size_read_back(request_id, fingerprint, numbers, pairs, has_indexes, is_move):
    rows, indexes = (np.array(column, np.uint32) for column in ([r for r, _ in pairs], [i for _, i in pairs]))
    request = Request(request_id, fingerprint, *numbers, rows, indexes if has_indexes else indexes[:0])
    frame = replace(_payloads()[Kind.RE_ENTER if is_move else Kind.CANCEL], request=request)
    assert len(request.encode()) == request.size
    read = type(frame).read(memoryview(b"".join(bytes(part) for part in frame.parts())))
    assert read.request is not None
    assert (read.request.id, read.request.fingerprint) == (request_id, fingerprint)
    assert (read.request.part, read.request.parts, read.request.done) == numbers
    assert read.request.rows.tolist() == rows.tolist()
    assert read.request.indexes.tolist() == (indexes.tolist() if has_indexes else [])


@given(
    st.lists(st.integers(0, 1 << 60), max_size=9),
    st.lists(st.integers(0, 255), max_size=9),
    st.sampled_from([0, 1, 2, PLACEMENTS_MAX]),
    st.booleans(),
)
def test_releases_of_any_size_read_back(seqs, via, placements, is_mixed):
    count = min(len(seqs), len(via))
    placements = [i if is_mixed else placements for i in range(count)]
    groups = np.zeros(count, RELEASE_GROUP)
    frame = Release(
        groups,
        np.array(seqs[:count], np.int64),
        np.array(via[:count], np.uint8),
        np.array(placements, np.uint16),
        np.arange(count % 3, dtype=np.uint32),
        None,
    )
    read = Release.read(memoryview(b"".join(bytes(part) for part in frame.parts())))
    assert (read.seqs.tolist(), read.via.tolist(), read.placements.tolist()) == (
        seqs[:count],
        via[:count],
        placements,
    )
    assert frame.version == (2 if set(placements) - {0} and set(placements) != {1} else 1)
    assert (len(read.groups), read.value_indexes.tolist(), read.section) == (
        count,
        list(range(count % 3)),
        None,
    )


def test_arrow_sections_hold_the_declared_schema():
    batch = arrow_batch([_MESSAGE], [0])
    with pytest.raises(AssertionError):
        arrow_parts(batch.rename_columns([*batch.schema.names[:-1], "bodies"]), 0)
    assert isinstance(batch, pa.RecordBatch)
