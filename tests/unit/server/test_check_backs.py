"""Check-backs: a producer that can answer is asked in time, even if other transactions have no producer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from helpers.small_broker import SmallBroker
from tidemill.core.model import Draft
from tidemill.server.grpc import check_backs
from tidemill.server.grpc.check_backs import CheckBacks
from tidemill.server.grpc.protocol import service
from tidemill.server.grpc.telemetry import Session, Sessions

_LATER_MS = 7_000


class _Rig:
    """Check-backs on a small broker, and what its producers were asked."""

    def __init__(self, small: SmallBroker) -> None:
        self.small = small
        self.sessions = Sessions(small.broker.settings)
        self.owners: dict[tuple[str, str], str] = {}
        self.check_backs = CheckBacks(small.broker, self.sessions, self.owners, self._call)

    async def _call(self, verb: Any, *arguments: Any) -> Any:
        return verb(*arguments)

    def begin(self, topic: str, count: int) -> None:
        ids = range(count)
        self.small.broker.transactions.begin([Draft(topic, b"half", id=f"{topic}-{n}") for n in ids])

    def producer(self, client_id: str, *topics: str) -> Session:
        session = self.sessions.open(client_id)
        session.is_producer, session.topics = True, frozenset(topics)
        return session

    def look(self) -> None:
        asyncio.run(self.check_backs.look())

    def asked(self, session: Session) -> list[str]:
        """What a producer was asked and has not read yet; it reads it now."""
        ids = []
        while not session.outbox.empty():
            data = session.outbox.get_nowait()
            session.forget(len(data))
            command = service.TelemetryCommand.FromString(data)
            ids.append(command.recover_orphaned_transaction_command.transaction_id)
        return ids


@pytest.fixture
def rig(small):
    return _Rig(small)


def test_transactions_without_a_producer_delay_no_other(rig):
    rig.begin("dead", 300)
    rig.begin("live", 1)
    producer = rig.producer("b", "live")
    rig.small.advance(_LATER_MS)
    rig.look()
    assert rig.asked(producer) == ["live-0"]


def test_all_of_many_are_asked_about_in_turn_with_bounded_work(rig, monkeypatch):
    monkeypatch.setattr(check_backs, "_SCANNED_MAX", 50)
    monkeypatch.setattr(check_backs, "_CHECKED_MAX", 7)
    rig.begin("dead", 120)
    rig.begin("live", 60)
    producer = rig.producer("b", "live")
    rig.small.advance(_LATER_MS)
    asked: list[str] = []
    for _ in range(30):
        rig.look()
        news = rig.asked(producer)
        assert len(news) <= 7
        asked += news
        rig.begin("young", 3)  # what comes meanwhile delays no other
    assert sorted(asked) == sorted(f"live-{n}" for n in range(60))


def test_a_producer_is_asked_again_later_and_no_more_when_it_has_ended(rig):
    rig.begin("live", 2)
    producer = rig.producer("b", "live")
    rig.look()
    assert rig.asked(producer) == []  # too young
    rig.small.advance(_LATER_MS)
    rig.look()
    rig.look()
    assert rig.asked(producer) == ["live-0", "live-1"]
    rig.small.broker.transactions.commit("live", "live-0")
    rig.small.advance(30_000)
    rig.look()
    assert rig.asked(producer) == ["live-1"]


def test_one_that_did_not_read_is_asked_again(rig):
    rig.begin("live", 1)
    rig.producer("gone", "live").unread.held = 1 << 30
    rig.small.advance(_LATER_MS)
    rig.look()
    producer = rig.producer("b", "live")
    rig.look()
    rig.look()
    assert rig.asked(producer) == ["live-0"]


def test_who_began_it_is_asked_though_it_named_another_topic(rig):
    rig.begin("live", 1)
    rig.owners["live", "live-0"] = "a"
    began = rig.producer("a", "other")
    rig.small.advance(_LATER_MS)
    rig.look()
    assert rig.asked(began) == ["live-0"]


def test_the_same_id_in_another_topic_is_another_owners(rig):
    for topic, client_id in (("live", "a"), ("other", "b")):
        rig.small.broker.transactions.begin([Draft(topic, b"half", id="same")])
        rig.owners[topic, "same"] = client_id
    first, second = rig.producer("a"), rig.producer("b")
    rig.small.advance(_LATER_MS)
    rig.look()
    assert (rig.asked(first), rig.asked(second)) == (["same"], ["same"])


def test_what_has_ended_is_forgotten_though_one_stays_open(rig):
    rig.producer("b")
    rig.begin("dead", 1)
    for n in range(20):
        rig.begin(f"t{n}", 1)
        rig.small.advance(_LATER_MS)
        rig.look()
        rig.small.broker.transactions.roll_back(f"t{n}", f"t{n}-0")
    assert len(rig.check_backs._asked) <= 5


def test_the_status_counts_them(rig):
    rig.begin("dead", 3)
    assert rig.small.broker.status().open_transactions == 3
