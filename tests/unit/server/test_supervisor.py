"""The supervisor with broker processes that connect late, and with directories that go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyvoy import StartupError

from tidemill.broker.identity import DIRECTORY_FORMAT
from tidemill.core.errors import StorageError
from tidemill.log.checkpoint import Checkpoint
from tidemill.log.disk import RealDisk
from tidemill.server.process import supervisor as supervising
from tidemill.server.process.serve_plan import ServePlan
from tidemill.server.process.supervisor import Supervisor

Said = list[tuple[str, dict[str, Any]]]


class _Server:
    """What the server library gives: a broker process that opens, or is ended for being slow."""

    listener_port = 8081
    listener_port_tls = None

    def __init__(self, *, is_slow: bool, code: int = 0, broker: str = "") -> None:
        self._is_slow = is_slow
        self._code = code
        self.stdout = asyncio.StreamReader()
        for event in ({"event": "opened", "flight_port": 8082, "broker": broker}, {"event": "closed"}):
            self.stdout.feed_data(json.dumps(event).encode() + b"\n")
        self.stdout.feed_eof()

    async def start(self) -> None:
        if self._is_slow:
            raise StartupError("no process connected")

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
    with pytest.raises(StorageError, match="server failed to start: no process connected"):
        _run(said, tmp_path, [lambda: _Server(is_slow=True)] * 20)
    assert len(said) == supervising._SLOW_STARTS_MAX - 1


def test_one_that_ends_by_itself_before_the_server_starts_is_given_up_at_once(
    said: Said, tmp_path: Path
) -> None:
    with pytest.raises(StorageError, match="server failed to start"):
        _run(said, tmp_path, [lambda: _Server(is_slow=True, code=1)] * 2)
    assert said == []


def test_one_that_was_killed_by_a_signal_is_not_called_slow(said: Said, tmp_path: Path) -> None:
    _run(said, tmp_path, [lambda: _Server(is_slow=True, code=-9), lambda: _Server(is_slow=False)])
    assert said[0][0] == "restarting" and not said[0][1]["was_slow"] and said[0][1]["signal"] == 9


def _run_without_directory(said: Said, directory: Path, mend: Callable[[], None]) -> int:
    """One broker that is killed; what is wrong with its directory is repaired as soon as that is reported."""

    def say(what: str, facts: dict[str, Any]) -> None:
        said.append((what, facts))
        if what == "away":
            mend()

    async def run() -> int:
        supervisor = Supervisor(ServePlan(str(directory)), say)
        killed = _Server(is_slow=False, code=-9, broker="AB12")
        made = iter([killed, _Server(is_slow=False)])
        supervisor._new_server = lambda: next(made)
        code = await supervisor.run()
        assert supervisor._plan_of_next().broker_before == "AB12"
        return code

    return asyncio.run(run())


def _identify(directory: Path, broker: str) -> None:
    content = json.dumps({"broker_id": broker}).encode()
    directory.mkdir(exist_ok=True)
    for path in directory.glob("identity.*"):
        path.unlink()
    Checkpoint(RealDisk(), directory, "identity", DIRECTORY_FORMAT).save(content, sync=False)


@pytest.mark.parametrize("before", ["nothing", "a mount point", "another broker"])
def test_a_directory_that_went_is_waited_for_and_nothing_is_made_in_its_place(
    said: Said, tmp_path: Path, before: str
) -> None:
    directory = tmp_path / "data"
    if before == "another broker":
        _identify(directory, "CD34")
    elif before == "a mount point":
        directory.mkdir()
    made = sorted(directory.glob("*"))

    def mend() -> None:
        assert sorted(directory.glob("*")) == made and directory.exists() == (before != "nothing")
        _identify(directory, "AB12")

    _run_without_directory(said, directory, mend)
    assert [what for what, _ in said] == ["opened", "closed", "restarting", "away", "opened", "closed"]
    assert str(directory) in said[3][1]["message"]


def test_a_directory_that_stayed_is_not_waited_for(said: Said, tmp_path: Path) -> None:
    _identify(tmp_path, "AB12")
    _run_without_directory(said, tmp_path, lambda: None)
    assert "away" not in [what for what, _ in said]


@pytest.mark.parametrize(("served_s", "grows"), [(6.0, False), (4.0, True)])
def test_the_pause_grows_only_for_a_broker_that_was_not_well(
    said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served_s: float, grows: bool
) -> None:
    clock = {"now_s": 0.0}

    class Killed(_Server):
        async def wait(self) -> int:
            clock["now_s"] += served_s
            return -9

        async def start(self) -> None:
            clock["now_s"] += 60.0  # reading a long log is not serving

    monkeypatch.setattr(supervising, "stopwatch_s", lambda: clock["now_s"])
    monkeypatch.setattr(supervising, "_PAUSE_SECONDS_FIRST", 1e-6)
    _run(said, tmp_path, [lambda: Killed(is_slow=False)] * 3 + [lambda: _Server(is_slow=False)])
    pauses = [facts["pause_s"] for what, facts in said if what == "restarting"]
    assert pauses == ([1e-6, 2e-6, 4e-6] if grows else [1e-6] * 3)
