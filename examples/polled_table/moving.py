"""Hand jobs of a polled table over to Tidemill, and run what it delivers.

`table` is one of the modules `jobs_postgres` and `jobs_sqlite`, `work(db, job, body)` what a job does.
docs/how-to/from-a-polled-table.md quotes this file.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pyarrow as pa

import tidemill

Work = Callable[[Any, int, str], None]
TOPIC = "jobs"


@contextmanager
def transaction(table: ModuleType, db: Any) -> Iterator[None]:
    db.execute(table.BEGIN)
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def poll(table: ModuleType, db: Any, work: Work) -> int:
    """The poller, as it was: takes up to 100 due jobs and runs them, all in one transaction."""
    with transaction(table, db):
        jobs = db.execute(table.POLL).fetchall()
        for job, body in jobs:
            work(db, job, body)
    return len(jobs)


def hand_over(table: ModuleType, db: Any, client: tidemill.Client, percent: int) -> tuple[int, int]:
    """Mark jobs, then schedule every marked one; how many were new and how many were there already."""
    new = repeated = after = 0
    while end := db.execute(table.PART, (after,)).fetchone()[0]:
        db.execute(table.MARK, (after, end, percent))  # committed before anything is scheduled
        marked = db.execute(table.MARKED, (after, end)).fetchall()
        names = [f"{job}-{due_ms}" for job, due_ms in marked]
        rows = {"id": names, "body": names, "deliver_at": [due_ms for _, due_ms in marked]}
        for answer in client.schedule(pa.table({**rows, "once": [True] * len(marked)}), topic=TOPIC):
            if isinstance(answer, tidemill.TidemillError):
                raise answer
            repeated += answer.is_repeat
            new += not answer.is_repeat
        after = end
    return new, repeated


def worker(table: ModuleType, pool: Pool, endpoint: str, work: Work) -> tidemill.Worker:
    """Runs what Tidemill delivers: the claim and the work are one transaction."""
    app = tidemill.Worker(endpoint, group="job-runners")

    @app.on(TOPIC)
    def run(message: tidemill.Message) -> None:
        job, due_ms = map(int, message.text.split("-"))
        with pool.connection() as db, transaction(table, db):
            for claimed, body in db.execute(table.CLAIM, (job, due_ms)).fetchall():
                work(db, claimed, body)

    return app


class Pool:
    """Connections for the threads of a worker; take the one your program has."""

    def __init__(self, table: ModuleType, address: str, size: int = 8) -> None:
        self._spare: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._all = [table.connect(address) for _ in range(size)]
        for db in self._all:
            self._spare.put(db)

    @contextmanager
    def connection(self) -> Iterator[Any]:
        db = self._spare.get()
        try:
            yield db
        finally:
            self._spare.put(db)

    def close(self) -> None:
        for db in self._all:
            db.close()
