"""The process that Spark's Python workers are forked from, with everything they need loaded already.

Owns what is imported before the fork: the workers of a step then start at once and share the memory of all
those modules, where each would load its own. Spark starts it with the name of the worker's module
(`spark.python.daemon.module`); from there on it is pyspark's own daemon.
"""

from __future__ import annotations

import importlib
import runpy
import sys

_TASK_WORKER = "pyspark.worker"
_LOADED_BEFORE = (
    "pyarrow",
    "pandas",
    "pyspark.sql.pandas.serializers",
    "tidemill.pipeline.source",
    "tidemill.pipeline.step",
)


def main() -> None:
    # The other workers only help Spark to plan, once at the start, and need little.
    if _TASK_WORKER in sys.argv:
        for name in _LOADED_BEFORE:
            importlib.import_module(name)
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
