"""The statements of the migration for a table in SQLite.

docs/how-to/from-a-polled-table.md quotes this file. SQLite has no type for times: `run_at` and `done_at` are
Unix milliseconds.
"""

from __future__ import annotations

import sqlite3

TABLE = (
    "CREATE TABLE jobs (id INTEGER PRIMARY KEY, run_at INTEGER NOT NULL, body TEXT NOT NULL, done_at INTEGER)"
)
INDEX = "CREATE INDEX jobs_due ON jobs (run_at) WHERE done_at IS NULL"
NEW = "INSERT INTO jobs (id, run_at, body) VALUES (?, ?, ?)"
_NOW = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"

OWNER = "ALTER TABLE jobs ADD COLUMN owner TEXT NOT NULL DEFAULT 'poller'"

POLL = f"""
UPDATE jobs SET done_at = {_NOW} WHERE id IN (
    SELECT id FROM jobs WHERE done_at IS NULL AND run_at <= {_NOW} AND owner <> 'tidemill'
    ORDER BY run_at LIMIT 100
) RETURNING id, body
"""

PART = "SELECT max(id) FROM (SELECT id FROM jobs WHERE id > ? AND done_at IS NULL ORDER BY id LIMIT 10000)"
MARK = """
UPDATE jobs SET owner = 'tidemill'
WHERE id > ? AND id <= ? AND done_at IS NULL AND owner = 'poller' AND id % 100 < ?
"""
MARKED = """
SELECT id, run_at FROM jobs WHERE id > ? AND id <= ? AND done_at IS NULL AND owner = 'tidemill'
"""

BEGIN = "BEGIN IMMEDIATE"  # one writer at a time
CLAIM = f"""
UPDATE jobs SET done_at = {_NOW}
WHERE id = ? AND run_at <= ? AND done_at IS NULL AND owner = 'tidemill'
RETURNING id, body
"""

GIVE_BACK = "UPDATE jobs SET owner = 'returned' WHERE done_at IS NULL AND owner = 'tidemill'"
LEFT = "SELECT count(*) FROM jobs WHERE done_at IS NULL AND owner <> 'tidemill'"
LATE = "SELECT owner, done_at - run_at FROM jobs WHERE done_at IS NOT NULL"
DISK = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"


def connect(address: str) -> sqlite3.Connection:
    # A pool hands a connection from thread to thread, to one at a time.
    db = sqlite3.connect(address, isolation_level=None, timeout=60, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    return db
