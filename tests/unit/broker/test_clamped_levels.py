"""A level above the highest is counted by topic and logged once for each, whichever way the message came."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from tidemill.core.errors import IllegalLevelError
from tidemill.core.model import Draft
from tidemill.core.send_batch import decode_columns, encode_drafts


@pytest.fixture
def said(caplog):
    """The lines of the log about levels."""
    caplog.set_level(logging.WARNING, "tidemill.broker.send.clamped_levels")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "tidemill.broker.send.clamped_levels"]


def _counts(small):
    return small.broker.status().clamped_levels


def test_a_clamped_level_is_counted_by_topic_and_logged_once_for_each(make_small, said):
    small = make_small(levels="10s 1m")
    small.send("t", level=2)
    small.send("t", level=0)
    assert _counts(small) == {}
    for level in (3, 18, 255):
        small.send("t", level=level)
    small.send("u", level=4)
    assert _counts(small) == {"t": 3, "u": 1}
    first, second = said()
    assert first.startswith("topic 't': level 3 is above the highest, 2 was used; ")
    assert second.startswith("topic 'u': level 4 is above the highest, 2 was used; ")
    assert "--levels" in first
    assert "tidemill_levels_clamped_total" in first


def test_every_way_of_sending_counts(small, said):
    draft = Draft("t", b"x", level=99, id="a")
    small.broker.send_each([draft, Draft("t", b"x", level=18, id="b")])
    small.broker.send_columns([decode_columns(encode_drafts([Draft("t", b"x", level=99, id="c")]))])
    assert _counts(small) == {"t": 2}
    small.broker.transactions.begin([Draft("paid", b"x", level=70_000, id="d")])
    assert _counts(small) == {"t": 2}
    small.broker.transactions.commit("paid", "d")
    assert _counts(small) == {"t": 2, "paid": 1}
    small.broker.transactions.commit("paid", "d")  # again
    table = pa.table(
        {
            "topic": ["u", "v", "u", "v", "u"],
            "body": [b"x"] * 5,
            "level": pa.array([19, 18, 20, 0, None], pa.int32()),
            "id": list("efghi"),
        }
    )
    small.broker.send_table(table)
    assert _counts(small) == {"t": 2, "paid": 1, "u": 2}
    assert [line.split(";")[0] for line in said()] == [
        "topic 't': level 99 is above the highest, 18 was used",
        "topic 'paid': level 65535 is above the highest, 18 was used",
        "topic 'u': level 19 is above the highest, 18 was used",
    ]


def test_a_send_back_to_a_level_above_the_highest_counts_for_the_topic_it_came_from(small):
    small.broker.receiver.set_group("fifo", is_fifo=True)
    small.send("t")
    for group in ("g", "fifo"):
        (delivery,) = small.broker.receive("t", group)
        assert "19 is above" in small.broker.send_back([delivery.ack_token], 19)[0].note
    assert _counts(small) == {"t": 2}


def test_what_is_not_stored_does_not_count(small, said):
    draft = Draft("t", b"x", level=99, id="a")
    small.broker.send([draft])
    small.broker.send([draft])  # a repeat
    small.broker.send_table(pa.table({"topic": ["t"], "body": [b"x"], "level": [99], "id": ["a"]}))
    assert _counts(small) == {"t": 1}
    with pytest.raises(IllegalLevelError):
        small.broker.send([Draft("u", b"x", level=99), Draft("u", b"x", level=-1)])
    assert _counts(small) == {"t": 1}
    assert len(said()) == 1
