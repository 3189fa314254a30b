"""What keeps the pipeline from running, in one line that says what is wrong and what to do.

Owns the translation of errors of Spark, Java and sockets into one-line texts. Whatever it does
not know it passes on as the first line of the error; all of it is in spark.log.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys

from pyspark.errors import PySparkException

from tidemill.core.errors import StorageError

_REACH_SECONDS = 5.0
_PROBE_SECONDS = 60.0
# What a worker must be and have: a version, and our step.
_PROBE = (
    "import sys; print('version %d.%d' % sys.version_info[:2], flush=True); import tidemill.pipeline.step"
)
_TEXT_MAX = 300
_STANDALONE = "spark://"

_OTHER_PYTHON = (
    "Spark's workers run Python {workers} and the driver runs Python {driver}; set PYSPARK_PYTHON to a "
    "Python {driver} that has tidemill installed"
)
# A pattern of an error, and the text for it; the first that matches counts. \1 is a group of the pattern.
_KNOWN = (
    (
        r"JAVA_GATEWAY_EXITED",
        "Spark's Java process did not start; see spark.log, and set JAVA_HOME to a Java 17 or newer",
    ),
    (
        r"(?:BindException|Address already in use).*?[Ss]ervice '?(\w+)'? failed",
        r"a port configured for Spark is in use (service \1); free it, or change the port in Spark's "
        "configuration",
    ),
    (
        r"BindException|Address already in use",
        "a port configured for Spark is in use; free it, or change the port in Spark's configuration",
    ),
    (
        r"Python in worker has different version: ([\d.]+) than that in driver: ([\d.]+\d)",
        _OTHER_PYTHON.format(workers=r"\1", driver=r"\2"),
    ),
    (
        r"PYTHON_VERSION_MISMATCH",
        "Spark's workers run another Python than the driver; set PYSPARK_PYTHON to the same version, with "
        "tidemill installed",
    ),
    (
        r"ModuleNotFoundError: No module named '([\w.]+)'",
        r"Spark's workers cannot import \1; install tidemill for the Python that PYSPARK_PYTHON names",
    ),
    (
        r"All masters are unresponsive|Could not connect to (?:spark|master)",
        "no Spark master answers; start it, or correct --spark-master",
    ),
    (
        r"Could not parse Master URL: '?([^'\s]+)'?",
        r"Spark does not know the master \1; use local[*], local-cluster[2,1,1024] or spark://host:port",
    ),
    (
        r"checkpoint/\S* does not exist",
        "Spark's checkpoint was deleted; the pipeline starts with a new one",
    ),
    (
        r"ConnectionRefusedError|Py4JNetworkError|Answer from Java side is empty",
        "Spark's Java process ended and is restarted. If that repeats, see spark.log",
    ),
    (r"No space left on device", "no space left on the disk for Spark's files; free space on it"),
    (
        r"OutOfMemoryError",
        "Spark's memory is used up; see spark.log, and give the pipeline fewer shards or smaller steps",
    ),
)


def explain(error: BaseException) -> str:
    """One line for logs and status."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, PySparkException):
        text = f"{error.getCondition() or ''} {text}"
    for pattern, words in _KNOWN:
        found = re.search(pattern, text, re.DOTALL)
        if found is not None:
            return found.expand(words)
    return next((line.strip() for line in str(error).splitlines() if line.strip()), text)[:_TEXT_MAX]


def require_same_python(python: str) -> None:
    """`StorageError` if the workers' Python cannot run our steps.

    Workers run on the broker's machine, so their Python can be asked beforehand. Spark would start all it
    has, try each task several times, and then complain at length.
    """
    if python == sys.executable:
        return
    try:
        probe = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StorageError(
            f"PYSPARK_PYTHON names {python}, which does not run here ({error}); correct it, or leave it out"
        ) from None
    found = re.search(r"^version ([\d.]+)$", probe.stdout, re.MULTILINE)
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    if found is not None and found[1] != ours:
        raise StorageError(_OTHER_PYTHON.format(workers=found[1], driver=ours))
    if probe.returncode != 0:
        *_, said = ["", *probe.stderr.strip().splitlines()]
        raise StorageError(explain(RuntimeError(said or f"{python} ended with code {probe.returncode}")))


def require_reachable(master: str) -> None:
    """`StorageError` if a standalone master does not answer: Spark itself would try for minutes."""
    if not master.startswith(_STANDALONE):
        return
    addresses = master.removeprefix(_STANDALONE).split(",")
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
        except (OSError, ValueError):
            continue
        return
    raise StorageError(f"no Spark master answers at {master}; start it, or correct --spark-master")
