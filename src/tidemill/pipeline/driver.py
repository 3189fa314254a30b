"""The pipeline process: one Spark session, one query, reports to the broker on its standard output.

Owns its own life: it ends when the pipe from the broker (standard input) closes, so nobody outlives
anybody. Reports are JSON lines:

    {"event": "ready"}                  the query runs, its workers are warm; the shards may be handed over
    {"event": "alive", "batch": 17}     once a second
    {"event": "failed", "why": "…"}     and then it ends

Started as `python -m tidemill.pipeline.driver '<settings as JSON>'`. Spark's own output goes to standard
error, which the broker points at a file.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from tidemill.pipeline.query import fresh_checkpoint, open_session, start_query
from tidemill.pipeline.settings import PipelineSettings

_REPORT_EVERY_S = 1


def report(event: str, **details: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **details}) + "\n")
    sys.stdout.flush()


def end_with_the_broker() -> None:
    """Wait for the pipe from the broker to close, then end at once: the steps are safe at any point."""
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)


def watch(query: StreamingQuery) -> None:
    """Report until the query ends."""
    is_ready = False
    while not query.awaitTermination(_REPORT_EVERY_S):
        progress = query.lastProgress
        batch = progress.batchId if progress is not None else -1
        if not is_ready and batch >= 0:
            is_ready = True
            report("ready")
        report("alive", batch=batch)
    raise query.exception() or RuntimeError("the query ended by itself")


def main(settings: PipelineSettings) -> None:
    threading.Thread(target=end_with_the_broker, daemon=True).start()
    checkpoint = fresh_checkpoint()
    try:
        report("starting")
        watch(start_query(open_session(settings), settings, checkpoint))
    except (PySparkException, OSError, RuntimeError) as error:
        report("failed", why=reason(error))
    finally:
        shutil.rmtree(Path(checkpoint), ignore_errors=True)
        os._exit(1)


def reason(error: BaseException) -> str:
    """One line for people."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[
        :300
    ]


if __name__ == "__main__":
    main(PipelineSettings.from_json(sys.argv[1]))
