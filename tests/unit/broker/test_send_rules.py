"""Rules that are one for requests, drafts and tables: near set, queues, topics, levels, the tick limit."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidemill.broker.send import plan as plan_module
from tidemill.core.errors import TooManyRequestsError, WrongMessageTypeError
from tidemill.core.model import Draft, Once, TopicType, Via
from tidemill.core.send_batch import decode_columns, encode_drafts
from tidemill.store.formats.frames import Kind
from tidemill.store.formats.message_format import Section

_HOUR_MS = 3_600_000
_WAYS = ["drafts", "columns", "table"]


def _send(broker, way: str, drafts: list[Draft]) -> None:
    if way == "drafts":
        broker.send(drafts)
    elif way == "columns":
        broker.send_columns([decode_columns(encode_drafts(drafts))])
    else:
        columns = {
            "topic": [draft.topic for draft in drafts],
            "body": [draft.body for draft in drafts],
            "id": [draft.id for draft in drafts],
            "delay_ms": pa.array([draft.delay_ms for draft in drafts], pa.int64()),
            "level": pa.array([draft.level for draft in drafts], pa.int64()),
            "message_group": [draft.message_group for draft in drafts],
        }
        broker.send_table(pa.table(columns))


def _near(count: int, name: str) -> list[Draft]:
    return [Draft("orders", b"%d" % n, id=f"{name}{n}", delay_ms=20_000) for n in range(count)]


def _messages(small) -> list[list]:
    """The messages of each frame of sends."""
    log = small.broker.store.log
    frames = [f for f in log.frames(log.head, log.written_end) if f.kind == Kind.MESSAGES]
    return [Section(frame.payload).messages() for frame in frames]


# -- near set -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", _WAYS)
def test_the_near_set_takes_the_first_rows_that_it_has_space_for(small, monkeypatch, way) -> None:
    monkeypatch.setattr(plan_module, "NEAR_COUNT_MAX", 5)
    _send(small.broker, way, _near(3, "a"))
    _send(small.broker, way, _near(4, "b"))
    _send(small.broker, way, _near(2, "c"))
    assert small.broker.releaser.near_count == 5
    near = [message.id for messages in _messages(small) for message in messages if message.flags]
    assert near == ["a0", "a1", "a2", "b0", "b1"]
    small.advance(20_000)
    assert len(small.bodies("orders")) == 9


def test_what_is_moved_goes_through_the_timer_while_the_near_set_is_full(small, monkeypatch) -> None:
    far = small.send("orders", delay_ms=_HOUR_MS)
    monkeypatch.setattr(plan_module, "NEAR_COUNT_MAX", 2)
    _send(small.broker, "drafts", _near(2, "a"))
    small.broker.reschedule([far.handle], delay_ms=20_000)
    assert small.broker.releaser.near_count == 2
    small.advance(20_000)
    assert len(small.bodies("orders")) == 3


# -- queues ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", _WAYS)
def test_only_what_is_stored_takes_a_turn_at_the_queues(small, way) -> None:
    small.broker.topics.create("orders")  # of two queues
    first = [Draft("orders", b"", id=name) for name in "abc"]
    again = [*first, Draft("orders", b"", id="d"), Draft("orders", b"", id="e", message_group="g")]
    for drafts in (first, again, [Draft("orders", b"", id="f")]):
        _send(small.broker, way, drafts)
    queues = {m.id: m.queue_id for messages in _messages(small) for m in messages if not m.message_group}
    assert queues == {"a": 0, "b": 1, "c": 0, "d": 1, "f": 0}


# -- topics ---------------------------------------------------------------------------------------


def _between_frames(small, monkeypatch, act) -> pa.Table:
    """A table of three frames; after the first of them is stored, `act` is called."""
    monkeypatch.setattr("tidemill.broker.send.batch_bounds.FRAME_ROWS_MAX", 4)
    store, called = small.broker.store, []

    def and_act(finish):
        def finish_and_act(*appended) -> None:
            finish(*appended)
            if store.ledger.next_seq and not called:
                called.append(True)
                act()

        return finish_and_act

    for name in ("finish", "finish_written"):
        monkeypatch.setattr(store, name, and_act(getattr(store, name)))
    return pa.table({"body": [b"%d" % n for n in range(10)], "delay_ms": [60_000] * 10})


def test_a_topic_deleted_between_two_frames_of_a_table_is_made_again(small, monkeypatch) -> None:
    table = _between_frames(small, monkeypatch, lambda: small.broker.topics.delete("orders", is_forced=True))
    result = small.broker.send_table(table, topic="orders")
    assert len(result.handles()) == 10
    small.advance(60_000)
    assert sorted(small.bodies("orders")) == [b"4", b"5", b"6", b"7", b"8", b"9"]


def test_a_frame_that_its_topic_no_longer_takes_says_how_many_rows_are_stored(small, monkeypatch) -> None:
    def replace_topic() -> None:
        small.broker.topics.delete("orders", is_forced=True)
        small.broker.topics.create("orders", TopicType.NORMAL)

    table = _between_frames(small, monkeypatch, replace_topic)
    with pytest.raises(WrongMessageTypeError, match=r"first 4 of 10 rows are stored; send the rest again"):
        small.broker.send_table(table, topic="orders")


def test_a_tick_filled_by_others_between_two_frames_says_how_many_rows_are_stored(
    make_small, monkeypatch
) -> None:
    small = make_small(due_per_tick_max=10)
    others = [Draft("orders", b"", delay_ms=60_000) for _ in range(3)]
    table = _between_frames(small, monkeypatch, lambda: small.broker.send(others))
    with pytest.raises(TooManyRequestsError, match=r"first 4 of 10 rows are stored; send the rest again"):
        small.broker.send_table(table, topic="orders")


def test_a_send_that_is_refused_whole_makes_no_topic(small) -> None:
    small.broker.send([Draft("orders", b"1", id="x")])
    with pytest.raises(Exception, match="belongs to another message"):
        small.broker.send([Draft("new", b""), Draft("orders", b"2", id="x")])
    assert small.broker.store.topics.named("new") is None


# -- neighbours -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "special",
    [
        {"level": 2},
        {"message_group": "g", "delay_ms": 90_000},
        {"keys": ("k",), "once": Once.KEEP, "delay_ms": 90_000},
        {"id": "n7", "delay_ms": 90_000},
        {"tag": "a|b"},
    ],
)
def test_one_special_message_leaves_its_neighbours_in_one_frame(small, special) -> None:
    drafts = [Draft("orders", b"", id=f"n{n}", delay_ms=90_000) for n in range(20)]
    drafts[11] = Draft(**{"topic": "orders", "body": b"", "id": "special"} | special)
    small.broker.topics.create("orders")
    (answers,) = small.broker.send_columns([decode_columns(encode_drafts(drafts))])
    assert len(answers.errors or {}) == ("tag" in special)
    (messages,) = _messages(small)
    assert len(messages) == (19 if "tag" in special or special.get("id") == "n7" else 20)


@pytest.mark.parametrize("way", _WAYS)
def test_messages_on_a_level_are_released_by_it_without_reading_the_log_again(small, way) -> None:
    _send(small.broker, way, [Draft("orders", b"%d" % n, id=f"{n}", level=2) for n in range(3)])
    small.advance(5_000)
    found = small.in_topic("orders")
    assert sorted(row.body for row in found) == [b"0", b"1", b"2"]
    assert {row.via for row in found} == {Via.LEVEL}


@pytest.mark.parametrize("way", _WAYS)
def test_a_tick_limit_that_is_not_reached_changes_nothing(make_small, way) -> None:
    logs = []
    for limit in (0, 100):
        small = make_small(due_per_tick_max=limit)
        drafts = [Draft("orders", b"", id=f"{n}", delay_ms=90_000 + n // 9) for n in range(20)]
        _send(small.broker, way, [*drafts, drafts[3]])
        logs.append(_messages(small))
    assert logs[0] == logs[1]
