"""What keeps the pipeline from running, in one line that says what is wrong and what to do.

Owns the translation from Spark's, Java's and the sockets' complaints into words for people. Whatever it does
not know it passes on as the first line of the complaint; the whole of it is in spark.log.
"""

from __future__ import annotations

import re
import socket

from pyspark.errors import PySparkException

from tidemill.core.errors import StorageError

_REACH_SECONDS = 5.0
_TEXT_MAX = 300
_STANDALONE = "spark://"

# What a complaint holds, and what to say instead; the first that fits. \1 is a group of the pattern.
_KNOWN = (
    (
        r"JAVA_GATEWAY_EXITED",
        "Spark's Java process did not start; see spark.log, and set JAVA_HOME to a Java 17 or newer",
    ),
    (
        r"(?:BindException|Address already in use).*?[Ss]ervice '?(\w+)'? failed",
        r"a port that Spark was told to use is taken (service \1); free it, or change the port in Spark's "
        "configuration",
    ),
    (
        r"BindException|Address already in use",
        "a port that Spark was told to use is taken; free it, or change the port in Spark's configuration",
    ),
    (
        r"PYTHON_VERSION_MISMATCH.*?version in worker: ([\d.]+)[\s\S]*?driver: ([\d.]+)",
        r"Spark's workers run Python \1 and the driver runs Python \2; set PYSPARK_PYTHON to a Python \2 "
        "that has tidemill installed",
    ),
    (
        r"PYTHON_VERSION_MISMATCH|Python in worker has different version",
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
        "somebody deleted Spark's checkpoint; the pipeline starts with a new one",
    ),
    (r"No space left on device", "there is no room left on the disk for Spark's files; make room"),
    (
        r"OutOfMemoryError",
        "Spark's memory is used up; see spark.log, and give the pipeline fewer shards or smaller steps",
    ),
)


def explain(error: BaseException) -> str:
    """One line for people."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, PySparkException):
        text = f"{error.getCondition() or ''} {text}"
    for pattern, words in _KNOWN:
        found = re.search(pattern, text, re.DOTALL)
        if found is not None:
            return found.expand(words)
    return next((line.strip() for line in str(error).splitlines() if line.strip()), text)[:_TEXT_MAX]


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
