"""Run one table's jobs side by side, half by a poller and half by Tidemill, and print what each cost.

    compare.py --sqlite FILE | --postgres "host=... user=... dbname=..."

Makes the table `jobs` and fails if there is one. Ends with exit code 0 only if every job ran once.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import tidemill

sys.path.insert(0, str(Path(__file__).parent))
import jobs_postgres
import jobs_sqlite
import moving

ENDPOINT = os.environ.get("TIDEMILL_ENDPOINT", "127.0.0.1:8081")
DAY_MS = 86_400_000


class Poller:
    """The usual loop: query, run due jobs, and sleep if that was less than a full batch."""

    def __init__(self, table: ModuleType, address: str, work: moving.Work, every_s: float) -> None:
        self.polls = 0
        self._table, self._address, self._work, self._every_s = table, address, work, every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        db = self._table.connect(self._address)
        while not self._stopped.is_set():
            self.polls += 1
            if moving.poll(self._table, db, self._work) < 100:
                self._stopped.wait(self._every_s)
        db.close()

    def __enter__(self) -> Poller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()


class Runs:
    """What ran, counted outside the database, so that a job that ran twice shows."""

    def __init__(self) -> None:
        self.times: Counter[int] = Counter()
        self._lock = threading.Lock()

    def work(self, db: Any, job: int, body: str) -> None:
        with self._lock:
            self.times[job] += 1


def main() -> int:
    asked = arguments()
    table, address = (jobs_postgres, asked.postgres) if asked.postgres else (jobs_sqlite, str(asked.sqlite))
    db, client, runs = table.connect(address), tidemill.Client(ENDPOINT), Runs()
    for statement in (table.TABLE, table.INDEX, table.OWNER):
        db.execute(statement)
    client.topics.create(moving.TOPIC)
    insert(table, db, far_jobs(asked.waiting))
    table_bytes = size(table, db)
    before = broker_bytes(client, asked.data)
    begun_s = time.perf_counter()
    waiting, _ = moving.hand_over(table, db, client, 50)
    hand_over_s = time.perf_counter() - begun_s
    insert(table, db, near_jobs(asked.jobs, asked.seconds, asked.waiting))
    with (
        Poller(table, address, runs.work, asked.poll) as poller,
        closing(moving.Pool(table, address)) as pool,
        moving.worker(table, pool, ENDPOINT, runs.work),
    ):
        moving.hand_over(table, db, client, 50)
        until(lambda: len(runs.times) == asked.jobs, asked.seconds + 60)
        polls_busy = poller.polls
        time.sleep(asked.quiet)
        polls_quiet = poller.polls - polls_busy
    late: dict[str, list[float]] = {"poller": [], "tidemill": []}
    for owner, late_ms in db.execute(table.LATE).fetchall():
        late[owner].append(float(late_ms))
    grown = broker_bytes(client, asked.data) - before
    stored = waiting + len(late["tidemill"])
    print(f"{waiting} jobs that wait were handed over in {hand_over_s:.1f} s")
    print("| | poller | Tidemill |\n|---|---|---|")
    print(row("jobs run", (len(late["poller"]), len(late["tidemill"]))))
    print(row("late, median", (f"{statistics.median(late[who]):.1f} ms" for who in late)))
    print(row("late, p99", (f"{percentile(late[who], 99):.1f} ms" for who in late)))
    print(row("statements while they ran", (polls_busy, len(late["tidemill"]))))
    print(row(f"statements in {asked.quiet:g} s with nothing due", (polls_quiet, 0)))
    each = f"{grown / stored:.0f} bytes" if asked.data else "not known without --data"
    print(row("disk for each job", (f"{table_bytes / max(1, asked.waiting):.0f} bytes", each)))
    twice = [job for job, times in runs.times.items() if times > 1]
    holds = len(runs.times) == asked.jobs and not twice
    print("everything held" if holds else f"{len(runs.times)} of {asked.jobs} ran, twice: {twice}")
    return 0 if holds else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--postgres", help="a connection string")
    place.add_argument("--sqlite", type=Path, help="a file")
    parser.add_argument("--jobs", type=int, default=2_000, help="fall due while this runs")
    parser.add_argument("--seconds", type=float, default=20.0, help="in which they do")
    parser.add_argument("--waiting", type=int, default=100_000, help="jobs that wait for days beside them")
    parser.add_argument("--poll", type=float, default=1.0, help="seconds that the poller sleeps")
    parser.add_argument("--quiet", type=float, default=10.0, help="seconds to watch with nothing due")
    parser.add_argument("--data", type=Path, help="the broker's data directory, if it is on this machine")
    return parser.parse_args()


def insert(table: ModuleType, db: Any, rows: Iterable[tuple[int, int, str]]) -> None:
    with moving.transaction(table, db):
        db.cursor().executemany(table.NEW, rows)


def far_jobs(count: int) -> Iterable[tuple[int, int, str]]:
    first_ms = time.time_ns() // 1_000_000 + DAY_MS
    return ((number, first_ms + number * 10, f"remind customer {number}") for number in range(1, count + 1))


def near_jobs(count: int, seconds: float, after: int) -> Iterable[tuple[int, int, str]]:
    """In no order of their keys, which decide whose job it is."""
    first_ms = time.time_ns() // 1_000_000 + 2_000
    order = random.Random(17).sample(range(count), count)
    return (
        (after + number, first_ms + int(place * seconds * 1000 / count), f"close order {number}")
        for number, place in enumerate(order, 1)
    )


def size(table: ModuleType, db: Any) -> int:
    return int(db.execute(table.DISK).fetchone()[0])


def broker_bytes(client: tidemill.Client, data: Path | None) -> int:
    """The log as far as it is written, which is allocated ahead, and what index and timer take up."""
    if data is None:
        return 0
    disk: Any = client.status().fields["disk"]
    files = [path for name in ("index", "timer") for path in (data / name).rglob("*") if path.is_file()]
    return int(disk["log_bytes"]) + sum(path.stat().st_blocks * 512 for path in files)


def percentile(numbers: list[float], percent: int) -> float:
    return statistics.quantiles(numbers, n=100, method="inclusive")[percent - 1]


def row(name: str, cells: Iterable[object]) -> str:
    return f"| {name} | {' | '.join(map(str, cells))} |"


def until(is_so: Any, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end_s:
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
