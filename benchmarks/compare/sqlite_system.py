"""The peer that is always installed: a table of a SQLite file, polled by the consumers.

Write-ahead log, `synchronous=FULL`: what is committed is on disk. A consumer deletes what is due and has it
by that, in one statement. There is no server; threads of one process share a connection, which is faster
than one each, because SQLite lets one write at a time and others only try again.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.compare.messages import Messages, body_of
from benchmarks.compare.system import BATCH, Served
from tidemill.core.clock import wall_s

_NEEDED = (3, 35)  # DELETE … RETURNING
_PATIENCE_S = 120.0
_TABLE = """
CREATE TABLE waiting (id INTEGER PRIMARY KEY, due_ms INTEGER NOT NULL, body BLOB NOT NULL);
CREATE INDEX waiting_by_due ON waiting (due_ms);
"""
_INSERT = "INSERT INTO waiting VALUES (?, ?, ?)"
_CLAIM = """
DELETE FROM waiting WHERE id IN (SELECT id FROM waiting WHERE due_ms <= ? ORDER BY due_ms LIMIT ?)
RETURNING body
"""


class SqliteSystem:
    name = "sqlite"
    title = "SQLite"
    needs_mover = False

    def missing(self, directory: Path) -> str:
        if sqlite3.sqlite_version_info < _NEEDED:
            return f"use a Python whose SQLite is 3.35 or newer (this one has {sqlite3.sqlite_version})"
        return ""

    @contextmanager
    def serving(self, directory: Path) -> Iterator[Served]:
        directory.mkdir()
        with closing(_open(directory / "waiting.db")) as connection:
            connection.executescript(_TABLE)
            yield _ServedSqlite(directory / "waiting.db", connection)

    def consume(self, address: str, poll_s: float) -> Generator[list[bytes]]:
        pause = threading.Event()
        with closing(_open(Path(address))) as connection:
            while True:
                rows = connection.execute(_CLAIM, (int(wall_s() * 1000), BATCH)).fetchall()
                if rows:
                    yield [body for (body,) in rows]
                if len(rows) < BATCH:
                    pause.wait(poll_s)

    def move(self, address: str, poll_s: float) -> Generator[int]:
        yield from ()


class _ServedSqlite:
    def __init__(self, file: Path, connection: sqlite3.Connection) -> None:
        self._file = file
        self._connection = connection
        self._turn = threading.Lock()  # protects the connection

    @property
    def address(self) -> str:
        return str(self._file)

    def pids(self) -> list[int]:
        return []

    def send(self, number: int, due_ms: int) -> None:
        body = body_of(number, due_ms)
        with self._turn:
            self._connection.execute(_INSERT, (number, due_ms, body))

    def stored(self, due_ms: int) -> list[int]:
        rows = self._connection.execute("SELECT id FROM waiting WHERE due_ms = ?", (due_ms,))
        return [number for (number,) in rows]

    def kill_and_start(self) -> bool:
        return False

    def is_back(self, number: int, due_ms: int) -> bool:
        return True

    @property
    def away_errors(self) -> tuple[type[Exception], ...]:
        return ()

    def ready_to_schedule(self, messages: Messages) -> Callable[[], None]:
        rows = list(messages.rows())
        return lambda: self._in_one_transaction(_INSERT, rows)

    def ready_to_cancel(self, messages: Messages, numbers: Sequence[int]) -> Callable[[], int]:
        chosen = [(number,) for number in numbers]

        def cancel() -> int:
            before = self._connection.total_changes
            self._in_one_transaction("DELETE FROM waiting WHERE id = ?", chosen)
            return self._connection.total_changes - before

        return cancel

    def _in_one_transaction(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        with self._turn:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(statement, rows)
            self._connection.execute("COMMIT")

    def waiting(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM waiting").fetchone()[0])

    def are_queued(self, messages: Messages) -> bool | None:
        return None

    def disk_bytes(self) -> int:
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return self._file.stat().st_size


def _open(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return connection
