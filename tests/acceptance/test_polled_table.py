"""The move of `docs/how-to/from-a-polled-table.md`, against a real broker and real PostgreSQL and SQLite.

The page quotes the files of `examples/polled_table/`; what runs here is those files.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tidemill
from acceptance.official_client import EXAMPLES
from acceptance.serving import Served, wait_until
from benchmarks.compare.postgres_system import PostgresSystem
from tidemill.core.clock import SystemClock

sys.path.insert(0, str(EXAMPLES / "polled_table"))
import jobs_sqlite
import moving

try:
    import jobs_postgres
except ImportError:  # psycopg has no wheel for this machine
    jobs_postgres = None  # type: ignore[assignment]

pytestmark = pytest.mark.slow
_EXAMPLE = EXAMPLES / "polled_table"
_PAGE = EXAMPLES.parent / "docs" / "how-to" / "from-a-polled-table.md"
_now_ms = SystemClock().now_ms
_HOUR_MS = 3_600_000
_names = itertools.count()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("polled") / "data"
    served = Served(directory, "--flight-port", "0", "--lead", "1s", "--tick", "100ms")
    yield served.start()
    served.stop()


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """A connection string of a throw-away server."""
    # Not pytest's directory: PostgreSQL does not run as root, and its user cannot go in there.
    with tempfile.TemporaryDirectory(prefix="tidemill-polled-") as place:
        os.chmod(place, 0o711)
        system = PostgresSystem()
        if missing := system.missing(Path(place)):
            pytest.skip(f"PostgreSQL is not here: {missing}")
        with system.serving(Path(place) / "server") as server:
            yield server.address


@dataclass
class _Jobs:
    """A table of jobs in a database of its own, and a topic of its own."""

    table: ModuleType
    address: str
    endpoint: str
    client: tidemill.Client
    db: Any

    def insert(self, due: dict[int, int]) -> None:
        with moving.transaction(self.table, self.db):
            rows = [(job, due_ms, f"job {job}") for job, due_ms in due.items()]
            self.db.cursor().executemany(self.table.NEW, rows)

    def hand_over(self, percent: int = 100) -> tuple[int, int]:
        return moving.hand_over(self.table, self.db, self.client, percent)

    @contextmanager
    def worker(self, work: moving.Work) -> Iterator[None]:
        with closing(moving.Pool(self.table, self.address)) as pool:
            with moving.worker(self.table, pool, self.endpoint, work):
                yield

    def number(self, question: str) -> int:
        return int(self.db.execute(question).fetchone()[0])

    def done(self) -> int:
        return self.number("SELECT count(*) FROM jobs WHERE done_at IS NOT NULL")

    def move(self, job: int, due_ms: int) -> None:
        when = str(due_ms) if self.table is jobs_sqlite else f"to_timestamp({due_ms} / 1000.0)"
        self.db.execute(f"UPDATE jobs SET run_at = {when} WHERE id = {job}")


@pytest.fixture(params=["sqlite", "postgres"])
def jobs(
    request: pytest.FixtureRequest, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[_Jobs]:
    name = f"jobs{next(_names)}"
    table, address = jobs_sqlite, str(tmp_path / "jobs.db")
    if request.param == "postgres":
        table, address = jobs_postgres, _new_database(request.getfixturevalue("postgres"), name)
    monkeypatch.setattr(moving, "TOPIC", name)
    with tidemill.Client(served.endpoint) as client, closing(table.connect(address)) as db:
        client.topics.create(name)
        for statement in (table.TABLE, table.INDEX, table.OWNER):
            db.execute(statement)
        yield _Jobs(table, address, served.endpoint, client, db)


def _new_database(address: str, name: str) -> str:
    with closing(jobs_postgres.connect(address)) as db:
        db.execute(f"CREATE DATABASE {name}")
    return address.replace("dbname=postgres", f"dbname={name}")


class _Runs:
    """What ran, with its owner at the time; counted outside the database, so that a second run shows."""

    def __init__(self) -> None:
        self.times: Counter[int] = Counter()
        self._lock = threading.Lock()

    def work(self, db: Any, job: int, body: str) -> None:
        assert body == f"job {job}"
        with self._lock:
            self.times[job] += 1


def test_a_table_moved_over_again_schedules_nothing_twice(jobs: _Jobs) -> None:
    begun_ms = _now_ms()
    jobs.insert({job: begun_ms + _HOUR_MS + job for job in range(1, 25_001)})
    jobs.insert({job: begun_ms - job for job in range(25_001, 25_004)})  # these come at once
    jobs.db.execute("UPDATE jobs SET done_at = run_at WHERE id = 24000")
    assert jobs.hand_over() == (25_002, 0)
    assert jobs.hand_over() == (0, 25_002)
    waiting = jobs.client.tables.pending(moving.TOPIC, columns=["id", "deliver_at"])
    due = dict(zip(*(column.to_pylist() for column in waiting.columns), strict=True))
    assert len(due) == 24_999
    assert f"17-{begun_ms + _HOUR_MS + 17}" in due


def test_a_move_that_broke_off_goes_on(jobs: _Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the first part, and between marking the second one and scheduling it."""
    jobs.insert({job: _now_ms() + _HOUR_MS for job in range(1, 25_001)})
    schedule = jobs.client.schedule

    def breaks(rows: Any, **options: Any) -> Any:
        if jobs.number("SELECT count(*) FROM jobs WHERE owner = 'tidemill'") > 10_000:
            raise ConnectionError
        return schedule(rows, **options)

    with monkeypatch.context() as broken:
        broken.setattr(jobs.client, "schedule", breaks)
        with pytest.raises(ConnectionError):
            jobs.hand_over()
    assert jobs.number("SELECT count(*) FROM jobs WHERE owner = 'tidemill'") == 20_000
    assert jobs.hand_over() == (15_000, 10_000)
    assert jobs.client.tables.pending(moving.TOPIC, columns=["id"]).num_rows == 25_000


def test_side_by_side_and_switched_every_job_runs_once(jobs: _Jobs) -> None:
    """Two pollers are at work while more and more is handed over, and new jobs come."""
    runs, is_over = _Runs(), threading.Event()

    def poll() -> None:
        with closing(jobs.table.connect(jobs.address)) as db:
            while not is_over.wait(0.02):
                moving.poll(jobs.table, db, runs.work)

    by_poller = "SELECT count(*) FROM jobs WHERE done_at IS NOT NULL AND owner = 'poller'"
    first_ms = _now_ms() + 200
    jobs.insert({job: first_ms + 5 * job for job in range(1, 301)})
    pollers = [threading.Thread(target=poll) for _ in range(2)]
    try:
        with jobs.worker(runs.work):
            for thread in pollers:
                thread.start()
            for step, percent in enumerate((10, 50, 50, 100, 100)):
                jobs.hand_over(percent)
                if percent < 100:
                    wait_until(lambda: jobs.number(by_poller) >= 20 + 20 * step, "jobs polled")  # noqa: B023
                first = 301 + 100 * step
                jobs.insert({job: _now_ms() + 300 + job % 100 for job in range(first, first + 100)})
            jobs.hand_over(100)
            jobs.hand_over(100)
            wait_until(lambda: jobs.done() == 800, "every job to be done")
            wait_until(lambda: not _waiting(jobs) and not _unsettled(jobs), "all messages")
    finally:
        is_over.set()
        for thread in pollers:
            thread.join()
    assert runs.times == Counter(range(1, 801))
    assert jobs.number(jobs.table.LEFT) == 0
    late = jobs.db.execute(jobs.table.LATE).fetchall()
    assert {owner for owner, _ in late} == {"poller", "tidemill"}
    assert min(float(late_ms) for _, late_ms in late) >= 0


def _waiting(jobs: _Jobs) -> int:
    return int(jobs.client.tables.pending(moving.TOPIC, columns=["id"]).num_rows)


def test_what_is_changed_in_the_table_counts(jobs: _Jobs) -> None:
    runs, due_ms = _Runs(), _now_ms() + 1_500
    jobs.insert({1: due_ms, 2: due_ms, 3: due_ms, 4: due_ms + _HOUR_MS, 5: due_ms})
    assert jobs.hand_over() == (5, 0)
    jobs.db.execute("DELETE FROM jobs WHERE id = 1")
    jobs.db.execute("UPDATE jobs SET done_at = run_at WHERE id = 2")
    jobs.move(3, due_ms + 700)
    jobs.move(4, due_ms + 100)
    assert jobs.hand_over() == (2, 1)
    with jobs.worker(runs.work):
        wait_until(lambda: runs.times == Counter([3, 4, 5]) and _waiting(jobs) == 1, "what is left")
        wait_until(lambda: not _unsettled(jobs), "all messages to be settled")
    assert runs.times == Counter([3, 4, 5])
    assert all(float(late_ms) >= 0 for _, late_ms in jobs.db.execute(jobs.table.LATE).fetchall())


def _unsettled(jobs: _Jobs) -> int:
    return sum(group.unsettled.get(moving.TOPIC, 0) for group in jobs.client.groups.list())


def test_what_is_given_back_is_the_pollers(jobs: _Jobs) -> None:
    runs, due_ms = _Runs(), _now_ms() + 400
    jobs.insert(dict.fromkeys(range(1, 11), due_ms))
    jobs.hand_over()
    jobs.db.execute(jobs.table.GIVE_BACK)
    with jobs.worker(runs.work):
        wait_until(lambda: _now_ms() > due_ms and not _waiting(jobs), "the messages")
        wait_until(lambda: not _unsettled(jobs), "all messages to be settled")
        assert not runs.times
        assert jobs.hand_over() == (0, 0)
        assert moving.poll(jobs.table, jobs.db, runs.work) == 10
    assert runs.times == Counter(range(1, 11))


def test_work_that_fails_leaves_the_job_undone_and_comes_again(jobs: _Jobs) -> None:
    seen: list[int] = []

    def work(db: Any, job: int, body: str) -> None:
        seen.append(job)
        if len(seen) == 1:
            raise ValueError("not yet")

    jobs.insert({1: _now_ms()})
    jobs.hand_over()
    with jobs.worker(work):
        wait_until(lambda: jobs.done() == 1, "the second attempt")
    assert seen == [1, 1]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_the_measurement_runs(
    kind: str, served: Served, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = ["--sqlite", str(tmp_path / "jobs.db")]
    if kind == "postgres":
        place = ["--postgres", _new_database(request.getfixturevalue("postgres"), "measured")]
    few = ["--jobs", "60", "--seconds", "1", "--waiting", "200", "--poll", "0.1", "--quiet", "0.5"]
    said = subprocess.run(
        [sys.executable, _EXAMPLE / "compare.py", *place, *few, "--data", str(served.directory)],
        env={**os.environ, "TIDEMILL_ENDPOINT": served.endpoint},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert "everything held" in said.stdout
    (names,) = re.findall(r"\| \| poller \| Tidemill \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", said.stdout)
    documented = _PAGE.read_text()
    for name in re.findall(r"^\| ([^|]+) \|", names, re.MULTILINE):
        assert f"| {re.sub(r'in [0-9.]+ s', 'in 10 s', name)} |" in documented


def test_the_page_quotes_what_runs_here() -> None:
    files = [path.read_text() for path in (_EXAMPLE / "jobs_postgres.py", _EXAMPLE / "moving.py")]
    blocks = re.findall(r"```python\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        assert any(block in text for text in files), block


def test_both_databases_have_the_same_statements() -> None:
    if jobs_postgres is None:
        pytest.skip("psycopg is not installed")
    statements = [
        {name for name in vars(table) if name.isupper()} - {"_NOW"} for table in (jobs_postgres, jobs_sqlite)
    ]
    assert statements[0] == statements[1]
