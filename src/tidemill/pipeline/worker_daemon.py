"""The process that Spark's Python workers are forked from, with everything they need loaded already.

Owns what is imported before the fork: the workers of a step then start at once and share the memory of all
those modules, where each would load its own. Only untouched pages stay shared, and a look for garbage touches
every object; so what is there before the fork is taken out of the collector's sight. Spark starts it with the
name of the worker's module (`spark.python.daemon.module`); from there on it is pyspark's own daemon.
"""

from __future__ import annotations

import gc
import importlib
import runpy
import sys

from tidemill.store.upkeep.memory import keep_memory_flat
from tidemill.store.without_pandas import keep_pandas_out

_TASK_WORKER = "pyspark.worker"
_LOADED_BEFORE = (
    _TASK_WORKER,
    "tidemill.pipeline.source",
    "tidemill.pipeline.step",
)


def load_before_the_fork() -> None:
    """Everything that a worker of a step needs, in as few pages as can be."""
    keep_memory_flat()
    keep_pandas_out()
    for name in _LOADED_BEFORE:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def main() -> None:
    # The other workers only help Spark to plan, once at the start, and need little.
    if _TASK_WORKER in sys.argv:
        load_before_the_fork()
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
