"""kill -9 of a process that sends: nothing acknowledged is lost, nothing is there twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from acceptance.command_line import run, start
from tidemill.broker.embedded import open_broker
from tidemill.core.config import TIMER_STORES

pytestmark = pytest.mark.slow

_SEND = """
import itertools, sys, tidemill
with tidemill.open(sys.argv[1], lead="300ms", tick="100ms", timer_store=sys.argv[2]) as broker:
    for number in itertools.count():
        # Near ones and far ones, so that both ways are cut in the middle.
        broker.send("kill", str(number), delay=0.1 if number % 2 else 0.9)
        print(number)
"""
_ROUNDS = 3
_SENT_PER_ROUND = 120


def _sent_until_killed(directory: Path, timer_store: str) -> int:
    """Let a process send, kill it in the middle; returns how many sends were answered."""
    with start(_SEND, directory, timer_store) as sender:
        assert sender.stdout is not None
        answered = 0
        for _ in range(_SENT_PER_ROUND):
            answered = int(sender.stdout.readline()) + 1
        sender.kill()
        answered += len(sender.stdout.read().split())
    return answered


def _received(directory: Path, timer_store: str) -> Counter[int]:
    found: Counter[int] = Counter()
    with open_broker(directory, lead="300ms", tick="100ms", timer_store=timer_store) as broker:
        while deliveries := broker.receive("kill", "readers", count=256, wait_ms=3_000):
            for delivery in deliveries:
                assert delivery.released_at_ms >= delivery.message.deliver_at_ms
                found[int(delivery.message.body)] += 1
            broker.ack([delivery.ack_token for delivery in deliveries])
        assert broker.status().pending == 0
    return found


@pytest.mark.parametrize("timer_store", TIMER_STORES)
def test_killed_while_sending_nothing_is_lost_and_nothing_is_twice(tmp_path: Path, timer_store: str) -> None:
    for number in range(_ROUNDS):
        directory = tmp_path / f"round-{number}"
        answered = _sent_until_killed(directory, timer_store)
        found = _received(directory, timer_store)
        assert not [n for n in range(answered) if found[n] != 1]
        # At most the one send that was under way when the kill came may be there unanswered.
        assert set(found) <= set(range(answered + 1))
        checked = run("check", directory)
        assert checked.returncode == 0, checked.stdout
