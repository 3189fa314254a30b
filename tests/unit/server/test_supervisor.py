"""The supervisor with broker processes that come late to the door."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyvoy import StartupError

from tidemill.core.errors import StorageError
from tidemill.server import supervisor as supervising
from tidemill.server.serve_plan import ServePlan
from tidemill.server.supervisor import Supervisor

Said = list[tuple[str, dict[str, Any]]]


class _Server:
    """What the server library gives: a broker process that opens, or is ended for being slow."""

    listener_port = 8081
    listener_port_tls = None

    def __init__(self, *, is_slow: bool, code: int = 0) -> None:
        self._is_slow = is_slow
        self._code = code
        self.stdout = asyncio.StreamReader()
        for event in ({"event": "opened", "flight_port": 8082}, {"event": "closed"}):
            self.stdout.feed_data(json.dumps(event).encode() + b"\n")
        self.stdout.feed_eof()

    async def start(self) -> None:
        if self._is_slow:
            raise StartupError("nobody came to the door")

    async def wait(self) -> int:
        return self._code

    async def stop(self) -> None:
        pass


@pytest.fixture
def said() -> Said:
    return []


@pytest.fixture(autouse=True)
def _standard_input_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising.os, "dup2", lambda *_, **__: None)  # the test's own is not the broker's
    monkeypatch.setattr(supervising, "_PAUSE_SECONDS_FIRST", 0.0)


def _run(said: Said, directory: Path, servers: list[Callable[[], _Server]]) -> int:
    async def run() -> int:
        plan = ServePlan(str(directory))
        supervisor = Supervisor(plan, lambda what, facts: said.append((what, facts)))
        made = iter([make() for make in servers])
        supervisor._new_server = lambda: next(made)
        return await supervisor.run()

    return asyncio.run(run())


def test_a_broker_that_is_slow_to_come_is_tried_again_and_nothing_is_said_to_serve_meanwhile(
    said: Said, tmp_path: Path
) -> None:
    slow = [lambda: _Server(is_slow=True)] * 3
    assert _run(said, tmp_path, [*slow, lambda: _Server(is_slow=False)]) == 1  # it ended by itself
    assert [what for what, _ in said] == ["restarting"] * 3 + ["opened", "closed"]
    assert all(facts["was_slow"] for what, facts in said if what == "restarting")


def test_one_that_never_comes_is_given_up(said: Said, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="the door did not open: nobody came"):
        _run(said, tmp_path, [lambda: _Server(is_slow=True)] * 20)
    assert len(said) == supervising._SLOW_STARTS_MAX - 1


def test_one_that_ends_by_itself_before_the_door_opens_is_given_up_at_once(
    said: Said, tmp_path: Path
) -> None:
    with pytest.raises(StorageError, match="the door did not open"):
        _run(said, tmp_path, [lambda: _Server(is_slow=True, code=1)] * 2)
    assert said == []


def test_one_that_was_killed_by_a_signal_is_not_called_slow(said: Said, tmp_path: Path) -> None:
    _run(said, tmp_path, [lambda: _Server(is_slow=True, code=-9), lambda: _Server(is_slow=False)])
    assert said[0][0] == "restarting" and not said[0][1]["was_slow"] and said[0][1]["signal"] == 9
