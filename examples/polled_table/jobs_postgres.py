"""The statements of the migration for a table in PostgreSQL.

docs/how-to/from-a-polled-table.md quotes this file.
"""

from __future__ import annotations

from typing import Any

import psycopg

TABLE = """
CREATE TABLE jobs (
    id bigint PRIMARY KEY, run_at timestamptz NOT NULL, body text NOT NULL, done_at timestamptz
)"""
INDEX = "CREATE INDEX jobs_due ON jobs (run_at) WHERE done_at IS NULL"
NEW = "INSERT INTO jobs (id, run_at, body) VALUES (%s, to_timestamp(%s / 1000.0), %s)"

# Who runs a job. Existing rows are the poller's.
OWNER = "ALTER TABLE jobs ADD COLUMN owner text NOT NULL DEFAULT 'poller'"

# The poller's query with the new condition.
POLL = """
UPDATE jobs SET done_at = clock_timestamp() WHERE id = ANY (ARRAY(
    SELECT id FROM jobs WHERE done_at IS NULL AND run_at <= now() AND owner <> 'tidemill'
    ORDER BY run_at LIMIT 100 FOR UPDATE SKIP LOCKED
)) RETURNING id, body
"""

# The table is read in parts of 10,000 rows: where the next part ends; null after the last.
PART = """
SELECT max(id) FROM (SELECT id FROM jobs WHERE id > %s AND done_at IS NULL ORDER BY id LIMIT 10000) part
"""
MARK = """
UPDATE jobs SET owner = 'tidemill'
WHERE id > %s AND id <= %s AND done_at IS NULL AND owner = 'poller' AND id %% 100 < %s
"""
MARKED = """
SELECT id, ceil(extract(epoch FROM run_at) * 1000)::bigint FROM jobs
WHERE id > %s AND id <= %s AND done_at IS NULL AND owner = 'tidemill'
"""

# Claims one job, unless it is done, deleted, delayed or returned; the transaction holds its row.
BEGIN = "BEGIN"
CLAIM = """
UPDATE jobs SET done_at = clock_timestamp()
WHERE id = %s AND run_at <= to_timestamp(%s / 1000.0) AND done_at IS NULL AND owner = 'tidemill'
RETURNING id, body
"""

GIVE_BACK = "UPDATE jobs SET owner = 'returned' WHERE done_at IS NULL AND owner = 'tidemill'"
LEFT = "SELECT count(*) FROM jobs WHERE done_at IS NULL AND owner <> 'tidemill'"
LATE = "SELECT owner, extract(epoch FROM done_at - run_at) * 1000 FROM jobs WHERE done_at IS NOT NULL"
DISK = "SELECT pg_total_relation_size('jobs')"


def connect(address: str) -> psycopg.Connection[Any]:
    return psycopg.connect(address, autocommit=True)
