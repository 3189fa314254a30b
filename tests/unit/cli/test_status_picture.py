"""The picture of a broker, drawn from made-up looks."""

from __future__ import annotations

import io

from rich.console import Console

from tidemill.cli.status_picture import Seen, picture_of, table_of
from tidemill.core.answers import BrokerStatus, Minute, TopicInfo
from tidemill.core.durations import format_time
from tidemill.core.model import TopicType

_NOW_MS = 1_800_000_000_000


def _status(sent: int = 0, **fields) -> BrokerStatus:
    said = {
        "near": 1,
        "ready": 2,
        "backlog": 3,
        "clock_leaps": 0,
        "is_clock_simulated": False,
        "pipeline": {
            "runner": "spark",
            "state": "ready",
            "lag_ms": 0,
            "takeovers": 0,
            "problem": "",
            "store": "wheel",
            "since_ms": _NOW_MS - 61_000,
        },
        "disk": {"log_bytes": 1 << 30, "free_bytes": 3 << 30, "is_full": False, "is_low": False},
        **fields,
    }
    return BrokerStatus(_NOW_MS, 7, sent, 0, 0, "spark", 0.4, 1.5, 9.0, said)


def _topic(name: str, pending: int = 0, is_paused: bool = False) -> TopicInfo:
    return TopicInfo(name, TopicType.MIXED, 4, is_paused, 0, pending, pending, 0, 0, 0)


def _drawn(picture, width: int = 100) -> str:
    screen = Console(file=io.StringIO(), width=width, color_system=None)
    screen.print(picture)
    return screen.file.getvalue()


def _seen(*looks: tuple[BrokerStatus, float], topics=(), minutes=()) -> Seen:
    seen = Seen("127.0.0.1:8081")
    for status, at_s in looks:
        seen.add(status, at_s, topics, minutes)
    return seen


def test_before_the_first_release_there_is_no_lateness() -> None:
    figures = {"p50": 0.0, "p99": 0.0, "max": 0.0}
    assert "none released since the start" in _drawn(table_of(_status(lateness_ms={"count": 0, **figures})))
    assert "p50 0.4 ms" in _drawn(table_of(_status(lateness_ms={"count": 1, **figures})))


def test_what_was_swept_is_a_line_of_its_own() -> None:
    assert "swept" not in _drawn(table_of(_status(swept=0)))
    said = "1 overdue message, missing in the timer, found and released"
    assert said in _drawn(table_of(_status(swept=1)))
    assert "1,200 overdue messages" in _drawn(picture_of(_seen((_status(swept=1_200), 0.0))))


def test_damage_to_the_log_is_a_line_of_its_own() -> None:
    assert "damaged" not in _drawn(table_of(_status()))
    damage = {"frames": 1, "messages": 3, "pending": 2}
    for drawn in (
        _drawn(table_of(_status(damage=damage)), 200),
        _drawn(picture_of(_seen((_status(damage=damage), 1.0))), 200),
    ):
        assert "3 messages in 1 frame of the log are not delivered, 2 of them wait" in drawn


def test_rates_are_between_two_looks() -> None:
    drawn = _drawn(picture_of(_seen((_status(100), 1.0), (_status(300), 1.5), (_status(350), 2.5))))
    assert "50/s ▁" not in drawn
    assert "50/s █▁" in drawn


def test_a_broker_that_begins_again_has_no_negative_rate() -> None:
    assert "-" not in _drawn(picture_of(_seen((_status(100), 1.0), (_status(5), 2.0)))).split("sent")[1][:20]


def test_a_new_broker_says_how_to_begin() -> None:
    assert "tidemill send" in _drawn(picture_of(_seen((_status(0), 1.0))))
    assert "tidemill send" not in _drawn(picture_of(_seen((_status(1), 1.0))))


def test_the_next_hour_is_drawn() -> None:
    minutes = [Minute(_NOW_MS + 60_000 * n, 10 if n == 3 else 0) for n in range(60)]
    drawn = _drawn(picture_of(_seen((_status(10), 1.0), minutes=minutes)))
    assert "10 fall due" in drawn
    assert drawn.count("█") >= 4


def test_the_topics_with_most_that_waits_come_first() -> None:
    topics = [_topic(f"t{n}", pending=n) for n in range(12)] + [_topic("idle", is_paused=True)]
    drawn = _drawn(picture_of(_seen((_status(10), 1.0), topics=topics)))
    assert drawn.index("t11") < drawn.index("t10")
    assert "t2 " not in drawn
    assert "and 5 more" in drawn


def test_who_turns_the_wheel_is_said_with_since_when_lag_and_takeovers() -> None:
    said = f"spark since {format_time(_NOW_MS - 61_000)}, ready, nothing behind, no takeovers, wheel"
    status = _status(1)
    for drawn in (_drawn(table_of(status)), _drawn(picture_of(_seen((status, 1.0))))):
        assert said in drawn


def test_what_is_wrong_is_said() -> None:
    pipeline = {
        "runner": "embedded",
        "state": "stopped",
        "lag_ms": 2000,
        "takeovers": 3,
        "store": "rocksdb",
        "since_ms": _NOW_MS,
        "problem": "no [Java]",
    }
    disk = {"log_bytes": 0, "free_bytes": 0, "is_full": True, "is_low": True}
    status = _status(1, pipeline=pipeline, disk=disk, clock_leaps=1)
    for drawn in (_drawn(table_of(status)), _drawn(picture_of(_seen((status, 1.0))))):
        for words in (
            f"embedded since {format_time(_NOW_MS)}, stopped, 2s behind, 3 takeovers, rocksdb",
            "no [Java]",
            "sends are refused",
            "1 leaps",
        ):
            assert words in drawn


def test_open_transactions_are_counted_where_there_are_any() -> None:
    for status, is_said in ((_status(1, open_transactions=1_200), True), (_status(1), False)):
        for drawn in (_drawn(table_of(status)), _drawn(picture_of(_seen((status, 1.0))))):
            assert ("1,200 in open transactions" in drawn) is is_said


def test_a_narrow_terminal_gets_a_picture_too() -> None:
    topics = [_topic("a-topic-with-a-long-name-indeed", pending=5)]
    lines = _drawn(picture_of(_seen((_status(10), 1.0), topics=topics)), width=60).splitlines()
    assert all(len(line) <= 60 for line in lines)


def test_what_an_operator_holds_is_said_with_its_end() -> None:
    holds = {"releases_since_ms": _NOW_MS - 120_000, "absorbing_since_ms": None}
    for fields, is_said in (({"holds": holds}, True), ({}, False)):
        status = _status(**fields)
        for drawn in (_drawn(table_of(status)), _drawn(picture_of(_seen((status, 1.0))))):
            assert ("releases for 2m: `tidemill resume releases`" in drawn) is is_said
            assert "absorbing" not in drawn


def test_what_releases_wait_for_is_said_in_words() -> None:
    waits = [
        {"waits_for": "pause", "topic": "orders", "messages": 1_200},
        {"waits_for": "commit", "topic": "", "messages": 8},
        {"waits_for": "rate", "topic": "", "messages": 2},
        {"waits_for": "hold", "topic": "", "messages": 7},
        {"waits_for": "absorb", "topic": "", "messages": 3},
        {"waits_for": "new", "topic": "", "messages": 1},
    ]
    for drawn in (
        _drawn(table_of(_status(waits=waits))),
        _drawn(picture_of(_seen((_status(waits=waits), 1.0)))),
    ):
        assert "1,200 wait: orders is paused" in drawn
        assert "8 wait: the disk is slow, all commits in flight are under way" in drawn
        assert "2 wait: a topic may release only so many a second" in drawn
        assert "7 wait: releases are held" in drawn
        assert "3 wait: absorbing is held, and the timer had not taken them in" in drawn
        assert "1 wait: new" in drawn
    assert "wait" not in _drawn(table_of(_status(waits=[])))
