"""A common peer: a table in PostgreSQL, polled with `FOR UPDATE SKIP LOCKED`.

As `initdb` makes it: every commit is synced. A consumer deletes what is due and has it by that, in one
statement; consumers beside it skip the rows it holds.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import queue
import secrets
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.compare.messages import Messages, body_of
from benchmarks.compare.system import BATCH, Served
from benchmarks.socket_place import socket_place
from benchmarks.tied_server import TiedServer
from tidemill.core.clock import wall_s
from tidemill.core.errors import StorageError

if TYPE_CHECKING:
    import psycopg

_USER = "bench"
# Debian keeps the server's programs off the path, one folder for each version.
_DEBIAN = Path("/usr/lib/postgresql")
_TABLE = "CREATE TABLE waiting (id bigint PRIMARY KEY, due_ms bigint NOT NULL, body bytea NOT NULL)"
_INDEX = "CREATE INDEX ON waiting (due_ms)"
_INSERT = "INSERT INTO waiting VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
_COPY = "COPY waiting FROM STDIN (FORMAT binary)"
# An array keeps the planner from running the inner part once for each row.
_CLAIM = """
DELETE FROM waiting WHERE id = ANY (ARRAY(
    SELECT id FROM waiting WHERE due_ms <= %s ORDER BY due_ms LIMIT %s FOR UPDATE SKIP LOCKED
)) RETURNING body
"""


class PostgresSystem:
    name = "postgres"
    title = "PostgreSQL"
    needs_mover = False

    def missing(self, directory: Path) -> str:
        if not all(map(_program, ("initdb", "postgres"))):
            return "install PostgreSQL's server, with `initdb` and `postgres` on the path"
        if importlib.util.find_spec("psycopg") is None:
            return "install the Python package `psycopg` (`pip install 'psycopg[binary]'`)"
        user = _server_user()
        if user and not _can_reach(user, directory):
            return f"name a place with --data that the user {user} can reach: PostgreSQL does not run as root"
        return ""

    @contextmanager
    def serving(self, directory: Path) -> Iterator[Served]:
        directory.mkdir(mode=0o700)
        user, password = _server_user(), secrets.token_hex(16)
        _make_cluster(directory, user, password)
        with socket_place(user) as place:
            flags = {"listen_addresses": "", "unix_socket_directories": place}
            command = [_program("postgres"), "-D", str(directory / "cluster")]
            command += [word for name, value in flags.items() for word in ("-c", f"{name}={value}")]
            # SIGQUIT: at once, but without leaving shared memory behind.
            process = TiedServer(command, directory.with_suffix(".log"), signal.SIGQUIT, user)
            address = f"host={place} user={_USER} password={password} dbname=postgres"
            try:
                process.wait_until_open("PostgreSQL", lambda: _answers(address))
                served = _ServedPostgres(address, process)
                yield served
                served.close()
            finally:
                process.stop()

    def consume(self, address: str, poll_s: float) -> Generator[list[bytes]]:
        pause = threading.Event()
        with closing(_connect(address)) as connection:
            while True:
                rows = connection.execute(_CLAIM, (int(wall_s() * 1000), BATCH)).fetchall()
                if rows:
                    yield [body for (body,) in rows]
                if len(rows) < BATCH:
                    pause.wait(poll_s)

    def move(self, address: str, poll_s: float) -> Generator[int]:
        yield from ()


class _ServedPostgres:
    def __init__(self, address: str, process: TiedServer) -> None:
        self._address = address
        self._process = process
        self._connection = _connect(address)
        self._spare: queue.SimpleQueue[psycopg.Connection[Any]] = queue.SimpleQueue()
        self._connection.execute(_TABLE)
        self._connection.execute(_INDEX)

    @property
    def address(self) -> str:
        return self._address

    def pids(self) -> list[int]:
        return self._process.pids()

    def send(self, number: int, due_ms: int) -> None:
        try:
            connection = self._spare.get_nowait()
        except queue.Empty:
            connection = _connect(self._address)
        connection.execute(_INSERT, (number, due_ms, body_of(number, due_ms)))
        self._spare.put(connection)

    def stored(self, due_ms: int) -> list[int]:
        rows = self._connection.execute("SELECT id FROM waiting WHERE due_ms = %s", (due_ms,)).fetchall()
        return [number for (number,) in rows]

    def kill_and_start(self) -> bool:
        self._process.kill_and_start()
        return True

    def is_back(self, number: int, due_ms: int) -> bool:
        try:
            fresh = _connect(self._address)
            fresh.execute(_INSERT, (number, due_ms, body_of(number, due_ms)))
        except self.away_errors:
            return False
        self._connection.close()
        self._connection = fresh
        return True

    @property
    def away_errors(self) -> tuple[type[Exception], ...]:
        import psycopg

        return (psycopg.OperationalError,)

    def ready_to_schedule(self, messages: Messages) -> Callable[[], None]:
        rows = list(messages.rows())

        def schedule() -> None:
            with (
                self._connection.cursor() as cursor,
                cursor.copy(_COPY) as copy,
            ):
                copy.set_types(["int8", "int8", "bytea"])
                for row in rows:
                    copy.write_row(row)

        return schedule

    def ready_to_cancel(self, messages: Messages, numbers: Sequence[int]) -> Callable[[], int]:
        chosen = list(numbers)
        return lambda: self._connection.execute("DELETE FROM waiting WHERE id = ANY (%s)", (chosen,)).rowcount

    def waiting(self) -> int:
        return self._number("SELECT count(*) FROM waiting")

    def are_queued(self, messages: Messages) -> bool | None:
        return None

    def disk_bytes(self) -> int:
        return self._number("SELECT pg_total_relation_size('waiting')")

    def _number(self, question: str) -> int:
        row = self._connection.execute(question.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        self._connection.close()
        while not self._spare.empty():
            self._spare.get().close()


def _program(name: str) -> str:
    """Where a program of the server is; empty: not installed."""
    kept = sorted(_DEBIAN.glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]))
    return shutil.which(name) or (str(kept[-1]) if kept else "")


def _connect(address: str) -> psycopg.Connection[Any]:
    import psycopg

    return psycopg.connect(address, autocommit=True)


def _answers(address: str) -> bool:
    import psycopg

    try:
        _connect(address).close()
    except psycopg.OperationalError:
        return False
    return True


def _server_user() -> str | None:
    """Whom the server runs as: us, but root may not."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


def _can_reach(user: str, directory: Path) -> bool:
    return (
        subprocess.run(["test", "-x", directory], user=user, capture_output=True, check=False).returncode == 0
    )


def _make_cluster(directory: Path, user: str | None, password: str) -> None:
    secret = directory / "password"
    secret.write_text(password)
    whom: dict[str, Any] = {}
    if user is not None:
        entry = pwd.getpwnam(user)
        for path in (directory, secret):
            os.chown(path, entry.pw_uid, entry.pw_gid)
        whom = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": ()}
    command = [_program("initdb"), "-D", str(directory / "cluster"), "-U", _USER, "--pwfile", str(secret)]
    command += ["-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "--no-sync"]
    made = subprocess.run(command, capture_output=True, text=True, check=False, **whom)
    secret.unlink()
    if made.returncode != 0:
        raise StorageError(
            f"initdb could not make a PostgreSQL to compare with: {made.stderr.strip()[-500:]}"
        )
