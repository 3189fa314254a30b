"""Messages just written: the columns that are applied are those that their bytes would give."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.model import NO_TIME_MS, MessageType, StoredMessage
from tidemill.store.find.hashing import PURPOSE_ID, hash_texts, topic_seeds
from tidemill.store.formats.arrow import encode_arrow
from tidemill.store.formats.message_format import Columns, Section
from tidemill.store.formats.new_messages import NewMessages, new_messages
from tidemill.store.formats.rows import encode_rows

_WORDS = st.text(st.characters(codec="utf-8", exclude_characters=" "), min_size=1, max_size=6)
_TEXTS = ("ids", "tags", "keys", "groups", "properties")


@st.composite
def _new_messages(draw) -> NewMessages:
    """Any columns; one number for all of them where that may be."""
    count = draw(st.integers(1, 40))

    def numbers(values) -> object:
        return draw(
            values | st.lists(values, min_size=count, max_size=count).map(lambda v: np.array(v, np.int64))
        )

    def texts(values) -> list[bytes]:
        return [text.encode() for text in draw(st.lists(values, min_size=count, max_size=count))]

    topic_ids = numbers(st.integers(1, 5))
    due = numbers(st.sampled_from([NO_TIME_MS, 0, 60_000, 1 << 45]))
    every_due = np.full(count, due) if isinstance(due, int) else due
    ids = texts(_WORDS)
    every_topic = np.full(count, topic_ids) if isinstance(topic_ids, int) else topic_ids
    keys = st.lists(_WORDS, max_size=3).map(" ".join)
    return NewMessages(
        count=count,
        timed=(every_due != NO_TIME_MS).nonzero()[0],
        stored_at_ms=1_800_000_000_000,
        born_at_ms=numbers(st.integers(0, 1 << 40)),
        deliver_at_ms=due,
        topic_ids=topic_ids,
        queue_ids=np.array(draw(st.lists(st.integers(0, 1023), min_size=count, max_size=count)), np.int64),
        types=numbers(st.integers(0, 3)),
        flags=numbers(st.integers(0, 31)),
        levels=numbers(st.integers(0, 18)),
        ids=ids,
        id_hashes=hash_texts(ids, topic_seeds(every_topic, PURPOSE_ID)),
        bodies=texts(st.text(max_size=9)),
        tags=draw(st.none() | st.just(texts(_WORDS))),
        keys=draw(st.none() | st.just(texts(keys))),
        groups=draw(st.none() | st.just(texts(_WORDS))),
        properties=draw(st.none() | st.just(texts(st.just('{"a":"b"}')))),
    )


def _as_arrow(new: NewMessages) -> NewMessages:
    columns = {}
    for name in _TEXTS:
        texts = getattr(new, name)
        columns[name] = None if texts is None else pa.array([text.decode() for text in texts], pa.string())
    return replace(new, bodies=pa.array(new.bodies, pa.binary()), **columns)


def _encoded(new: NewMessages, first_seq: int):
    for written in (encode_rows(new, -1, first_seq), encode_arrow(_as_arrow(new), -1, first_seq)):
        data = b"".join(bytes(part) for part in written.parts)
        assert written.size == len(data)
        yield written, Section(memoryview(data))


@settings(deadline=None)
@given(_new_messages(), st.integers(0, 1 << 40))
def test_what_is_applied_is_what_the_log_holds(new, first_seq) -> None:
    for written, section in _encoded(new, first_seq):
        assert (written.count, written.first_seq) == (section.count, section.first_seq)
        found, wanted = written.columns(), section.columns()
        for field in fields(Columns):
            assert getattr(found, field.name).tolist() == getattr(wanted, field.name).tolist(), field.name
        assert written.timed.tolist() == wanted.timed_rows.tolist()
        assert written.has_levels or not wanted.level.any()


@settings(deadline=None)
@given(_new_messages())
def test_messages_come_back_as_they_were_in_either_encoding(new) -> None:
    rows, arrow = (section.messages() for _, section in _encoded(new, 0))
    assert rows == arrow
    for row, message in enumerate(rows):
        assert message.id.encode() == new.ids[row]
        assert message.body == new.bodies[row]
        assert " ".join(message.keys).encode() == (new.keys[row] if new.keys else b"")
        assert message.tag.encode() == (new.tags[row] if new.tags else b"")
        assert message.message_group.encode() == (new.groups[row] if new.groups else b"")


@settings(deadline=None)
@given(_new_messages(), st.data())
def test_some_of_them_are_what_they_were_among_all(new, data) -> None:
    which = data.draw(st.lists(st.integers(0, new.count - 1), min_size=1, unique=True).map(sorted))
    for some in (new.rows(np.array(which)), _as_arrow(new).rows(np.array(which))):
        if some.is_arrow:
            section = Section(memoryview(b"".join(map(bytes, encode_arrow(some, -1, 7).parts))))
        else:
            section = Section(memoryview(bytes(encode_rows(some, -1, 7).parts[0])))
        every = next(_encoded(new, 0))[1].messages()
        assert section.messages() == [every[row] for row in which]
        assert some.timed.tolist() == [
            at for at, m in enumerate(section.messages()) if m.deliver_at_ms != NO_TIME_MS
        ]


@pytest.mark.parametrize("levels", [0, np.zeros(2, np.int64)])
def test_without_a_level_the_level_queues_are_left_alone(levels) -> None:
    one = new_messages([StoredMessage("a", 1, 0, MessageType.DELAY, 0, 0, "", (), "", 1, 1, 5, {}, b"")] * 2)
    new = replace(one, levels=levels)
    assert encode_rows(new, -1, 0).has_levels is not isinstance(levels, int)
