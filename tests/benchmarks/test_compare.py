"""`python -m benchmarks compare`: systems do what is measured, what goes wrong is seen, and it all runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from acceptance.serving import PATIENCE_S, wait_until
from benchmarks.__main__ import run
from benchmarks.compare import postgres_system, turns
from benchmarks.compare.compared import COMPARED, Compared, verdict
from benchmarks.compare.killing import measure_kill
from benchmarks.compare.messages import Messages, body_of, far_messages, number_and_due
from benchmarks.compare.sqlite_system import SqliteSystem
from benchmarks.compare.system import BATCH, Served, System
from benchmarks.compare.systems import PEERS, TIDEMILL, chosen_peers
from benchmarks.compare.worker import Taken
from tidemill.core.clock import wall_s
from tidemill.core.errors import RequestError, StorageError
from tidemill.core.limits import HOUR_MS
from tidemill.core.processes import is_alive

_BENCHMARKS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"


def _now_ms() -> int:
    return int(wall_s() * 1000)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that another user can pass through: PostgreSQL's server does not run as root."""
    with tempfile.TemporaryDirectory(prefix="tidemill-compare-") as name:
        os.chmod(name, 0o711)
        yield Path(name)


@contextmanager
def _serving(system: System, place: Path) -> Iterator[Served]:
    if reason := system.missing(place):
        pytest.skip(f"{system.title} cannot be compared here: {reason}")
    with system.serving(place / "data") as served:
        yield served


# -- what every system has to do ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("system", [TIDEMILL, *PEERS], ids=lambda system: system.name)
def test_a_system_stores_cancels_and_hands_out_what_is_due_once(system: System, place: Path) -> None:
    now_ms = _now_ms()
    with _serving(system, place) as served:
        empty_bytes = served.disk_bytes()
        far = far_messages(3_000, now_ms)
        served.ready_to_schedule(far)()
        served.send(3_000, now_ms + HOUR_MS)
        assert served.waiting() == 3_001
        # Its 100 bytes are on disk, for each.
        assert served.disk_bytes() - empty_bytes > 100 * len(far)

        assert served.ready_to_cancel(far, [0, 7, 2_999])() == 3
        assert served.ready_to_cancel(far, [7])() == 0
        assert served.waiting() == 2_998

        # No multiple of a batch: the last claim has space for messages that are not due.
        due = Messages(10_000, np.full(250, now_ms - 1, np.int64))
        assert len(due) % BATCH
        served.ready_to_schedule(due)()
        if system.needs_mover:
            assert served.are_queued(due) is False
            with closing(system.move(served.address, 0.001)) as moves:
                assert sum(islice(moves, 3)) == len(due)
        with closing(system.consume(served.address, 0.001)) as batches:
            bodies: list[bytes] = []
            while len(bodies) < len(due):
                bodies += next(batches)
        assert sorted(map(number_and_due, bodies)) == [(n, now_ms - 1) for n in range(10_000, 10_250)]
        assert served.are_queued(due) in (True, None)
        assert served.waiting() == 2_998


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_that_is_not_installed_says_what_to_install(
    peer: System, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(postgres_system, "_DEBIAN", tmp_path)
    assert peer.missing(tmp_path).startswith("install ") or peer.name == "sqlite"


def test_of_several_installed_versions_of_postgres_the_newest_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for version in ("9.6", "15", "17"):
        (tmp_path / version / "bin").mkdir(parents=True)
        (tmp_path / version / "bin" / "initdb").touch()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(postgres_system, "_DEBIAN", tmp_path)
    assert postgres_system._program("initdb") == str(tmp_path / "17" / "bin" / "initdb")
    assert postgres_system._program("postgres") == ""


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said = {peer.name: peer.missing(tmp_path) for peer in PEERS}
    assert "`redis`" in said["redis"]
    assert "psycopg" in said["postgres"]
    assert said["sqlite"] == ""


# -- the measurements ---------------------------------------------------------------------------------


def test_a_message_says_which_one_it_is_and_when_it_is_due() -> None:
    body = body_of(17, 1_794_869_758_199)
    assert len(body) == 100
    assert number_and_due(body) == (17, 1_794_869_758_199)


@pytest.mark.parametrize(
    ("numbers", "late_ms", "words"),
    [
        ([5, 6, 6], [1.0, 1.0, 1.0], "every message once"),
        ([5, 6], [1.0, 1.0], "every message once"),
        ([5, 6, 7], [1.0, -0.5, 1.0], "0.5 ms early"),
    ],
)
def test_what_is_lost_doubled_or_early_ends_the_measurement(
    numbers: list[int], late_ms: list[float], words: str
) -> None:
    expected = Messages(5, np.zeros(3, np.int64))
    with pytest.raises(StorageError, match=words):
        turns._once_and_not_early(SqliteSystem(), expected, Taken(numbers, late_ms, 0.0))


class _Ledger:
    """A system in memory whose server is away for a moment after the kill; what it keeps then can be set."""

    def __init__(self, after_the_kill: Callable[[list[int]], list[int]]) -> None:
        self._after_the_kill = after_the_kill
        self._lock = threading.Lock()  # protects the numbers
        self._numbers: list[int] = []
        self._refusals = 0
        self._has_some = threading.Event()
        self.away_errors = (ConnectionError,)

    def send(self, number: int, due_ms: int) -> None:
        with self._lock:
            if self._refusals:
                self._refusals -= 1
                raise ConnectionError
            if number not in self._numbers:
                self._numbers.append(number)
            if len(self._numbers) > 2:
                self._has_some.set()

    def kill_and_start(self) -> bool:
        assert self._has_some.wait(PATIENCE_S)
        with self._lock:
            self._numbers = self._after_the_kill(self._numbers)
            self._refusals = 5
        return True

    def is_back(self, number: int, due_ms: int) -> bool:
        try:
            self.send(number, due_ms)
        except self.away_errors:
            return False
        return True

    def stored(self, due_ms: int) -> list[int]:
        return self._numbers


@pytest.mark.parametrize(
    ("after_the_kill", "lost", "doubled"),
    [
        (lambda numbers: numbers, 0, 0),
        (lambda numbers: numbers[2:], 2, 0),
        (lambda numbers: [*numbers, numbers[0]], 0, 1),
    ],
)
def test_what_a_kill_loses_or_doubles_is_counted(
    after_the_kill: Callable[[list[int]], list[int]], lost: int, doubled: int
) -> None:
    figures = measure_kill(_Ledger(after_the_kill), 2, 0.02)  # type: ignore[arg-type]
    assert (figures["killed_lost"], figures["killed_doubled"]) == (lost, doubled)
    assert figures["killed_down_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("system", [TIDEMILL, *PEERS], ids=lambda system: system.name)
def test_what_was_answered_outlives_a_kill(system: System, place: Path) -> None:
    with _serving(system, place) as served:
        figures = measure_kill(served, 4, 0.1)
        assert bool(figures) == bool(served.pids())
        assert figures.get("killed_lost", 0) == figures.get("killed_doubled", 0) == 0


class _Forgetful:
    """A system that answers every second send of a thread without storing it."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self.waiting = served.waiting

    def send(self, number: int, due_ms: int) -> None:
        if number % 2:
            self._served.send(number, due_ms)


def test_a_send_that_was_answered_and_not_stored_ends_the_measurement(place: Path) -> None:
    system = SqliteSystem()
    with _serving(system, place) as served:
        with pytest.raises(StorageError, match="should wait in SQLite"):
            turns._sends_per_s(system, _Forgetful(served), 0.05)  # type: ignore[arg-type]


# -- the whole ----------------------------------------------------------------------------------------


def test_every_figure_is_explained() -> None:
    text = _BENCHMARKS.read_text()
    assert not [figure.name for figure in COMPARED if f"`{figure.name}`" not in text]


@pytest.mark.parametrize(
    ("more_is_better", "values", "words"),
    [
        (True, [200.0, 100.0, 50.0], "2.0 times better"),
        (True, [100.0, 50.0, 2_000.0], "20 times worse"),
        (False, [1.0, 20.0, 50.0], "20 times better"),
        (False, [40.0, 20.0, None], "2.0 times worse"),
        (False, [20.5, 20.0], "alike"),
        (False, [0.0, 0.05], "alike"),
        (False, [1.0, None], ""),
        (False, [None, 1.0], ""),
    ],
)
def test_the_verdict_is_beside_the_best_peer(
    more_is_better: bool, values: list[float | None], words: str
) -> None:
    assert str(verdict(Compared("name", "meaning", "/s", more_is_better), values)) == words


def test_peers_are_chosen_by_name() -> None:
    assert [peer.name for peer in chosen_peers("sqlite, redis")] == ["redis", "sqlite"]
    with pytest.raises(RequestError, match="unknown peer 'celery'; --peers takes redis, postgres, sqlite"):
        chosen_peers("sqlite,celery")


def test_a_poll_interval_that_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "--poll", "0s"]) != 0
    assert "give 1ms to 60s" in capsys.readouterr().err


def test_more_pending_than_the_disk_holds_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", "--pending", "1000000000000", "--data", str(tmp_path)]) != 0
    assert "name another place with --data" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_quick_bench_gives_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "--quick", "--json", "--peers", "sqlite", "--data", str(tmp_path)]
    assert run(command) == 0
    figures = json.loads(capsys.readouterr().out)
    names = {f"tidemill_{figure.name}" for figure in COMPARED}
    of_servers = ("memory_", "killed_")  # SQLite has none
    names |= {f"sqlite_{figure.name}" for figure in COMPARED if not figure.name.startswith(of_servers)}
    assert set(figures) == names | {"poll_ms", "pending", "burst"}
    assert all(value >= 0 for value in figures.values())
    assert all(value > 0 for name, value in figures.items() if name.endswith("per_s"))
    assert not list(tmp_path.iterdir())


_KILLED = """
import signal, sys
from pathlib import Path
from benchmarks.tied_server import TiedServer
server = TiedServer(["sleep", "1000"], Path(sys.argv[1]), signal.SIGTERM)
server.wait_until_open("sleeper", lambda: len(server.pids()) == 1)
print(*server.pids(), flush=True)
sys.stdin.read()
"""


def test_a_server_to_compare_with_ends_when_the_measurement_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _KILLED, str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as measuring:
        assert measuring.stdout is not None
        pid = int(measuring.stdout.readline())
        assert is_alive(pid)
        measuring.send_signal(signal.SIGKILL)
        wait_until(lambda: not is_alive(pid), "the server ends by itself")
