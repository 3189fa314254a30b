"""The columns of a table of messages: what a caller may name, and what is wrong with a table as a whole.

Shared by the broker, which takes tables, and the client, which may have to send one row by row.
docs/flight.md says what each column means.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from tidemill.core.errors import RequestError

# Two names for a time, because a column of timestamps has no unit in its name.
TIME_COLUMNS = ("deliver_at", "deliver_at_ms", "delay_ms")
JITTER_COLUMN = "jitter_ms"
TEXT_COLUMNS = ("topic", "id", "key", "tag", "message_group", "properties")
COLUMNS = frozenset((*TEXT_COLUMNS, *TIME_COLUMNS, "body", "level", "once", JITTER_COLUMN))


def check_names(names: Sequence[str], topic: str | None) -> None:
    """`RequestError` unless every row of a table with these columns may have a body and a topic."""
    check_known(names)
    if repeated := sorted(name for name in set(names) if names.count(name) > 1):
        raise RequestError(f"the columns {repeated} are there more than once; name each column once")
    if "body" not in names or ("topic" not in names and topic is None):
        raise RequestError(
            "a table needs a `body` column, and its topic either as a column or as an argument"
        )


def check_known(names: Sequence[str]) -> None:
    if unknown := set(names) - COLUMNS:
        raise RequestError(f"unknown columns {sorted(unknown)}; known are {sorted(COLUMNS)}")


def check_jitter_once(names: Container[str]) -> None:
    """`RequestError` if a table whose rows are given a jitter has a column of them as well."""
    if JITTER_COLUMN in names:
        raise RequestError(
            f"the jitter is given twice, as an argument and as the column `{JITTER_COLUMN}`; "
            "leave one of them out"
        )
