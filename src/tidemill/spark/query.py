"""SQL over the views `pending`, `history` and `messages`, reading only the columns that the query uses.

PySpark does not tell a Python source which columns are used. So a query is planned twice: first over empty
stand-ins with the tables' columns, whose optimised plan shows what is used, then over the real ones, cut to
that. What is wrong with the SQL shows in the first round, before the broker is asked for a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tidemill.spark.options import Options, Place
from tidemill.spark.reading import ALL_COLUMNS, table_columns
from tidemill.spark.sources import register

VIEWS = {"pending": "tidemill_pending", "history": "tidemill_history", "messages": "tidemill"}
_ALWAYS_CHEAP = "seq"  # what a query that uses no column at all reads, count(*) say
_CUTS = {"Project", "Aggregate"}  # use what they name, and nothing else of what is below
_PASSES = {
    "Filter",
    "Sort",
    "GlobalLimit",
    "LocalLimit",
    "Offset",
    "Join",
    "Window",
    "Repartition",
    "RepartitionByExpression",
    "Sample",
}
_UNRESOLVED = "UNRESOLVED_COLUMN"

Used = dict[str, set[str]]


def sql(spark: SparkSession, text: str, **options: str) -> DataFrame:
    """The answer to a query over `pending`, `history` and `messages`; options as for the data sources.

    The views are there only while the query is read; views of yours by these names are put back. `SELECT *`
    has the columns that most people want; the others (body, properties, handle …) come when they are named.
    """
    register(spark)
    place = Options(options, "sql", ()).place()
    named = [view for view in VIEWS if re.search(rf"\b{view}\b", text, re.IGNORECASE)]
    with _names_lent(spark, named):
        try:
            used = _used_columns(spark, text, _schemas(place, named, []))
        except AnalysisException as error:
            if _UNRESOLVED not in (error.getCondition() or ""):
                raise
            used = _used_columns(spark, text, _schemas(place, named, [ALL_COLUMNS]))
        for view, columns in used.items():
            reader = spark.read.format(VIEWS[view]).options(**options)
            reader.option("columns", ",".join(columns)).load().createOrReplaceTempView(view)
        return spark.sql(text)


@contextmanager
def _names_lent(spark: SparkSession, views: list[str]) -> Iterator[None]:
    """Lets the block make temporary views by these names; afterwards they are what they were before."""
    catalog = spark.catalog
    kept = {table.name for table in catalog.listTables() if table.isTemporary and table.name in views}
    theirs = {view: spark.table(view) for view in kept}
    try:
        yield
    finally:
        for view in views:
            catalog.dropTempView(view)
        for view, frame in theirs.items():
            frame.createOrReplaceTempView(view)


def _schemas(place: Place, views: list[str], columns: list[str]) -> dict[str, StructType]:
    return {view: table_columns(place, view, columns) for view in views}


def _used_columns(spark: SparkSession, text: str, schemas: Mapping[str, StructType]) -> Used:
    """Which columns of each view a query uses, by its optimised plan over stand-ins without rows."""
    for view, schema in schemas.items():
        rows = spark.sparkContext.emptyRDD()
        spark.createDataFrame(rows, schema).createOrReplaceTempView(view)
    plan = spark.sql(text)._jdf.queryExecution().optimizedPlan()
    by_columns = {tuple(schema.fieldNames()): view for view, schema in schemas.items()}
    used: Used = {view: set() for view in schemas}
    for columns, needed in _leaves(plan, None):
        leaf = by_columns.get(tuple(columns.values()))
        if leaf is not None:
            used[leaf] |= {name for id_, name in columns.items() if needed is None or id_ in needed}
    return {
        view: {name for name in schema.fieldNames() if name in used[view]} or {_ALWAYS_CHEAP}
        for view, schema in schemas.items()
    }


def _leaves(node: Any, needed: set[int] | None) -> Iterator[tuple[dict[int, str], set[int] | None]]:
    """Every leaf of a plan: its columns by their id, and the ids that are needed (None: all)."""
    children = _items(node.children())
    if not children:
        yield {attribute.exprId().id(): attribute.name() for attribute in _items(node.output())}, needed
    own = {attribute.exprId().id() for attribute in _items(node.references().toSeq())}
    name = node.nodeName()
    below = own if name in _CUTS else needed | own if name in _PASSES and needed is not None else None
    for child in children:
        yield from _leaves(child, below)
    for subquery in _items(node.subqueries()):
        yield from _leaves(subquery, None)


def _items(sequence: Any) -> list[Any]:
    """The items of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.length())]
