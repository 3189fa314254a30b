"""A real standalone Spark cluster on loopback, from the installed PySpark: a master and two workers."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from pipeline.spark_broker import wait_for

WORKERS = 2
_HOST = "127.0.0.1"
_STOP_S = 20


class Standalone:
    """Processes of a cluster. `workers` may be killed by a test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self.port = _free_port()
        self.master = f"spark://{_HOST}:{self.port}"

    @property
    def workers(self) -> list[subprocess.Popen[bytes]]:
        return self._processes[1:]

    def start(self) -> None:
        web = ("--webui-port", "0")
        self._run("master", "org.apache.spark.deploy.master.Master", "--port", str(self.port), *web)
        wait_for("the master listens", lambda: _listens(self.port))
        for number in range(WORKERS):
            work = self._directory / f"work-{number}"
            shape = ("--cores", "1", "--memory", "1g", "--work-dir", str(work), self.master)
            self._run(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *web, *shape)
        for number in range(WORKERS):
            log = self._log(f"worker-{number}")
            wait_for("a worker is registered", lambda log=log: "Successfully registered" in log.read_text())

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _run(self, name: str, what: str, *flags: str) -> None:
        home = _find_spark_home()
        environment = {
            **os.environ,
            "SPARK_HOME": home,
            "SPARK_LOCAL_IP": _HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC",
        }
        command = [f"{home}/bin/spark-class", what, "--host", _HOST, *flags]
        with self._log(name).open("wb") as log:
            self._processes.append(
                subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self._directory)
            )

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"


@contextmanager
def standalone(directory: Path) -> Iterator[Standalone]:
    cluster = Standalone(directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((_HOST, port)) == 0
