"""The command that starts the timer pipeline on Spark for a broker, or why it cannot be started here.

Owns the check of the machine: PySpark, Java. A machine without them still works, on the embedded runner.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from tidemill.core.config import BrokerSettings
from tidemill.core.errors import RequestError
from tidemill.store.indexes import IndexSizes
from tidemill.timer.settings import StepLimits, TimerSettings

JAVA_MAJOR_MIN = 17
POLL_MS = 500  # an idle Spark that looks more often takes noticeably of a core
# "17.0.15", and "1.8.0_292" for Java 8.
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_COUNT = r"[1-9]\d*"
_MASTER = re.compile(
    rf"local(\[({_COUNT}|\*)(,{_COUNT})?\])?|local-cluster\[{_COUNT},{_COUNT},(?P<worker_mb>{_COUNT})\]"
    r"|spark://[^\s/:]+:\d+(,[^\s/:]+:\d+)*"
)


def pipeline_command(
    python: str, directory: Path, settings: BrokerSettings, master: str, *, poll_ms: int = POLL_MS
) -> list[str]:
    """How to start the pipeline process for a data directory."""
    from tidemill.pipeline.settings import PipelineSettings

    plan = PipelineSettings(
        data_directory=str(directory.resolve()),
        master=master,
        lead_ms=settings.lead_ms,
        timer=TimerSettings.of(settings),
        limits=StepLimits(),
        entry_chunk_rows=IndexSizes().entry_chunk_rows,
        poll_ms=poll_ms,
    )
    return [python, "-m", "tidemill.pipeline.driver", plan.to_json()]


def check_master(master: str) -> None:
    """`RequestError` for what Spark would not understand, or could not reach the broker's disk from."""
    found = _MASTER.fullmatch(master)
    if found is None:
        raise RequestError(
            f"spark-master {master!r} is unknown; use local[*], local[4], local-cluster[2,1,1024] "
            "or spark://host:port"
        )
    from tidemill.pipeline.settings import EXECUTOR_MEMORY_MB

    if found["worker_mb"] is not None and int(found["worker_mb"]) < EXECUTOR_MEMORY_MB:
        raise RequestError(
            f"spark-master {master!r} gives each worker {found['worker_mb']} MB, and one needs "
            f"{EXECUTOR_MEMORY_MB} MB; use local-cluster[2,1,1024]"
        )


def why_not_spark(otherwise: str = ", or use --pipeline embedded") -> str:
    """What keeps Spark from running on this machine, in one line that says what to do; empty if nothing.

    `otherwise` is how to do without Spark.
    """
    if importlib.util.find_spec("pyspark") is None:
        return f"PySpark is not installed; install tidemill[spark]{otherwise}"
    home = os.environ.get("JAVA_HOME")
    if home and not _java_of(home).exists():
        return f"JAVA_HOME names {home}, where there is no Java; correct it, or leave it out{otherwise}"
    java = java_command()
    if java is None:
        return f"there is no Java; install Java {JAVA_MAJOR_MIN} or newer{otherwise}"
    major = _java_major(java)
    if major is not None and major < JAVA_MAJOR_MIN:
        return f"Java {major} is too old; Spark needs Java {JAVA_MAJOR_MIN} or newer (set JAVA_HOME)"
    return ""


def java_command() -> str | None:
    """The Java that Spark would start."""
    home = os.environ.get("JAVA_HOME")
    return str(_java_of(home)) if home else shutil.which("java")


def _java_of(home: str) -> Path:
    return Path(home) / "bin" / "java"


def _java_major(java: str) -> int | None:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found[1]) if found else None
