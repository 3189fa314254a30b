"""The pipeline process: one Spark session, one query, reports to the broker on its standard output.

Owns its own lifetime: it ends when the pipe from the broker (standard input) closes, so it never outlives
the broker. Reports are JSON lines:

    {"event": "ready"}                  the query runs, its workers are warm; the shards may be handed over
    {"event": "alive", "batch": 17, "step_ms": 210, "steps_ms": [190, 210]}   once a second: how long its last
                                        step took, and all those since it reported last
    {"event": "waiting", "why": "…"}    it is not ready yet and cannot help it
    {"event": "failed", "why": "…"}     and then it ends

Started as `python -m tidemill.pipeline.driver '<settings as JSON>'`. Spark's own output goes to standard
error, which the broker points at a file.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from tidemill.core.errors import TidemillError
from tidemill.core.parent_watch import when_untied
from tidemill.core.processes import command_line, descendants, kill
from tidemill.log.disk import RealDisk
from tidemill.pipeline.failures import explain, require_reachable, require_same_python
from tidemill.pipeline.query import open_session, start_query, worker_python
from tidemill.pipeline.settings import PipelineSettings

_REPORT_EVERY_S = 1
_FIRST_STEP_S = 60  # once the query runs; on a busy machine it takes half of that
_NO_EXECUTORS = (
    "Spark has begun no step for {seconds} s: does {master} have workers with a free core and {memory_mb} MB "
    "each? See spark.log"
)
# The pipeline works a lead ahead and can wait for a core; the releaser in the broker cannot.
_NICENESS = 5
# For every kind of question to a Python data source Spark starts a daemon and a worker of its own, and keeps
# them. Three kinds are asked only while a query is planned; together they hold a quarter of a gigabyte.
_ASKED_ONCE = (
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
)


def report(event: str, **details: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **details}) + "\n")
    sys.stdout.flush()


def end_at_once() -> None:
    """End with all that was started: the steps are safe at any point.

    Java and its workers would follow by themselves, unless they hang or were stopped.
    """
    kill(descendants(os.getpid()))
    os._exit(0)


def dismiss_planners() -> int:
    """End the helpers that planned the query; how many processes there were.

    Should Spark ask again after all, it finds them gone and starts new ones.
    """
    found = [pid for pid in descendants(os.getpid()) if command_line(pid).rstrip().endswith(_ASKED_ONCE)]
    kill(found)  # a worker and its daemon alike: neither has anything to put away
    return len(found)


def watch(query: StreamingQuery, settings: PipelineSettings) -> None:
    """Report until the query ends."""
    is_ready, looks, reported = False, 0, 0  # the first step, number 0, only starts the workers
    while not query.awaitTermination(_REPORT_EVERY_S):
        looks += 1
        progress = query.lastProgress
        batch = progress.batchId if progress is not None else -1
        step_ms = progress.durationMs.get("triggerExecution", 0) if progress is not None else 0
        if not is_ready and batch >= 0:
            is_ready = True
            report("ready")
            dismiss_planners()
        if not is_ready and looks == _FIRST_STEP_S // _REPORT_EVERY_S:
            facts = {"seconds": _FIRST_STEP_S, "master": settings.master}
            report("waiting", why=_NO_EXECUTORS.format(**facts, memory_mb=settings.executor_memory_mb))
        recent = [one for one in query.recentProgress if one.batchId > reported]
        steps_ms = [one.durationMs.get("triggerExecution", 0) for one in recent]
        report("alive", batch=batch, step_ms=step_ms, steps_ms=steps_ms)
        reported = max(reported, batch)
    raise query.exception() or RuntimeError("the query ended by itself")


def main(settings: PipelineSettings) -> None:
    when_untied(end_at_once)
    os.nice(_NICENESS)
    # Progress is in the shards' cursors: whatever an earlier pipeline left here is worth nothing.
    RealDisk().remove_tree(settings.scratch_directory)
    RealDisk().make_dir(settings.temporary_directory)
    try:
        report("starting")
        require_reachable(settings.master)
        require_same_python(worker_python(settings.master))
        watch(start_query(open_session(settings), settings), settings)
    except (PySparkException, Py4JError, TidemillError, OSError, RuntimeError) as error:
        report("failed", why=explain(error))
        traceback.print_exception(error)  # the whole of it is for spark.log
    finally:
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main(PipelineSettings.from_json(sys.argv[1]))
