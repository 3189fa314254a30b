"""SQL over the views `pending`, `history` and `messages`, reading only the rows and columns that it uses.

PySpark does not pass a Python source the columns of a query. So a query is planned twice: first over empty
stand-ins, whose optimised plan shows which columns are used and which filters are right above a table, then
over the real ones, reduced to that. Where a table is used several times, the columns are those of all uses,
and a filter counts if every use has it. Errors in the SQL are raised by the first planning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tidemill.core.errors import RequestError
from tidemill.spark.filters import Condition, conditions_of
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
_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"
_NO_QUERIES = ("Command", "ParsedStatement")  # CREATE, INSERT, DESCRIBE, SET …


@dataclass(frozen=True, slots=True)
class Use:
    """What a query uses of a table."""

    columns: list[str]
    conditions: list[Condition]


def sql(spark: SparkSession, text: str, **options: str) -> DataFrame:
    """The answer to a query over `pending`, `history` and `messages`; options as for the data sources.

    The views are there only while the query is read; views of yours by these names are put back. `SELECT *`
    has the columns that most people want; the others (body, properties, handle …) come when they are named.
    """
    _require_query(spark, text)
    register(spark)
    place = Options(options, "sql", ()).place()
    named = [view for view in VIEWS if re.search(rf"\b{view}\b", text, re.IGNORECASE)]
    with _names_lent(spark, named):
        try:
            used = _uses(spark, text, _schemas(place, named, []))
        except AnalysisException as error:
            if _UNRESOLVED not in (error.getCondition() or ""):
                raise
            used = _uses(spark, text, _schemas(place, named, [ALL_COLUMNS]))
        for view, use in used.items():
            reader = (
                spark.read.format(VIEWS[view]).options(**options).option("columns", ",".join(use.columns))
            )
            if use.conditions:
                reader = reader.option("where", json.dumps(use.conditions))
            reader.load().createOrReplaceTempView(view)
        return spark.sql(text)


def _require_query(spark: SparkSession, text: str) -> None:
    """`RequestError` for what is no query: Spark would carry it out at once, over the stand-ins too."""
    jvm: Any = spark._jvm
    kinds = [jvm.java.lang.Class.forName(f"{_LOGICAL}.{name}") for name in _NO_QUERIES]
    nodes = [spark._jsparkSession.sessionState().sqlParser().parsePlan(text)]
    for node in nodes:  # grows while it is walked
        if any(kind.isInstance(node) for kind in kinds):
            words = " ".join(text.split()[:2])
            raise RequestError(f"{words!r} is not a query; use SELECT … FROM {', '.join(VIEWS)}")
        nodes += _items(node.children())


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


def _uses(spark: SparkSession, text: str, schemas: Mapping[str, StructType]) -> dict[str, Use]:
    """What a query uses of each view, by its optimised plan over stand-ins without rows."""
    for view, schema in schemas.items():
        rows = spark.sparkContext.emptyRDD()
        spark.createDataFrame(rows, schema).createOrReplaceTempView(view)
    plan = spark.sql(text)._jdf.queryExecution().optimizedPlan()
    leaves = list(_leaves(plan, None, None))
    uses = {}
    for view, schema in schemas.items():
        names = schema.fieldNames()
        mine = [leaf for leaf in leaves if list(leaf.columns.values()) == names]
        needed = {name for leaf in mine for name in leaf.needed_names()}
        filters = [
            conditions_of(spark._jvm, leaf.filter, schema) if leaf.filter is not None else [] for leaf in mine
        ]
        shared = [c for c in filters[0] if all(c in others for others in filters[1:])] if filters else []
        uses[view] = Use([name for name in names if name in needed] or [_ALWAYS_CHEAP], shared)
    return uses


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A table in a plan."""

    columns: dict[int, str]  # by their id in the plan
    needed: set[int] | None  # None: all
    filter: Any  # the expression right above it, None if there is none

    def needed_names(self) -> Iterator[str]:
        return (name for id_, name in self.columns.items() if self.needed is None or id_ in self.needed)


def _leaves(node: Any, needed: set[int] | None, condition: Any) -> Iterator[_Leaf]:
    """Every leaf of a plan, with what is needed of it above."""
    children = _items(node.children())
    if not children:
        columns = {attribute.exprId().id(): attribute.name() for attribute in _items(node.output())}
        yield _Leaf(columns, needed, condition)
    own = {attribute.exprId().id() for attribute in _items(node.references().toSeq())}
    name = node.nodeName()
    below = own if name in _CUTS else needed | own if name in _PASSES and needed is not None else None
    for child in children:
        yield from _leaves(child, below, node.condition() if name == "Filter" else None)
    for subquery in _items(node.subqueries()):
        yield from _leaves(subquery, None, None)


def _items(sequence: Any) -> list[Any]:
    """The items of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.length())]
