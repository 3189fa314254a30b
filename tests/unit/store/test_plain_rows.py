"""Plain rows: the columns that are applied are those that the bytes in the log would give."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.model import NO_TIME_MS
from tidemill.store.find.hashing import PURPOSE_ID, hash_texts, topic_seeds
from tidemill.store.formats.message_format import Columns, Section
from tidemill.store.formats.plain_rows import PlainRows

_WORDS = st.text(st.characters(codec="utf-8", exclude_characters=" "), min_size=1, max_size=6)


@st.composite
def _plain_rows(draw) -> PlainRows:
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
    return PlainRows(
        stored_at_ms=1_800_000_000_000,
        topic_ids=topic_ids,
        queue_ids=np.array(draw(st.lists(st.integers(0, 1023), min_size=count, max_size=count)), np.int64),
        flags=numbers(st.integers(0, 1)),
        deliver_at_ms=due,
        timed=(every_due != NO_TIME_MS).nonzero()[0],
        ids=ids,
        id_hashes=hash_texts(ids, topic_seeds(every_topic, PURPOSE_ID)),
        tags=draw(st.none() | st.just(texts(_WORDS))),
        keys=draw(st.none() | st.just(texts(keys))),
        properties=draw(st.none() | st.just(texts(st.just('{"a":"b"}')))),
        bodies=texts(st.text(max_size=9)),
        born_at_ms=draw(st.none() | st.just(np.arange(count))),
    )


@given(_plain_rows(), st.integers(0, 1 << 40))
def test_what_is_applied_is_what_the_log_holds(rows, first_seq) -> None:
    written = rows.written(-1, first_seq)
    section = Section(memoryview(written.data))
    assert (written.count, written.first_seq) == (section.count, section.first_seq)
    found, wanted = written.columns(), section.columns()
    for field in fields(Columns):
        assert getattr(found, field.name).tolist() == getattr(wanted, field.name).tolist(), field.name
    assert written.timed.tolist() == wanted.timed_rows.tolist()


@given(_plain_rows())
def test_messages_come_back_as_they_were(rows) -> None:
    for row, message in enumerate(Section(memoryview(rows.written(-1, 0).data)).messages()):
        assert message.id.encode() == rows.ids[row]
        assert message.body == rows.bodies[row]
        assert " ".join(message.keys).encode() == (rows.keys[row] if rows.keys else b"")
        assert message.tag.encode() == (rows.tags[row] if rows.tags else b"")
