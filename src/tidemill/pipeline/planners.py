"""Spark's planning helpers, sent away once the query runs.

For every kind of question to a Python data source Spark starts a daemon and a worker of its own, and keeps
them. Three kinds are asked only while a query is planned; together they hold a quarter of a gigabyte. Should
Spark ask again after all, it finds them gone and starts new ones.
"""

from __future__ import annotations

import os

from tidemill.core.processes import command_line, descendants, kill

_ASKED_ONCE = (
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
)


def dismiss_planners() -> int:
    """End them; how many processes there were."""
    found = [pid for pid in descendants(os.getpid()) if command_line(pid).rstrip().endswith(_ASKED_ONCE)]
    kill(found)  # a worker and its daemon alike: neither has anything to put away
    return len(found)
