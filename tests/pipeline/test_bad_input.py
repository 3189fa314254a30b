"""What Spark needs is missing or wrong: one line says so, status shows it, and the broker works anyway."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from acceptance.command_line import one_line_on_stderr, run
from acceptance.serving import Served
from pipeline.other_pythons import OWN_VERSION, other_python
from pipeline.spark_broker import wait_for
from tidemill.client.client import Client
from tidemill.server.process.pipeline_command import why_not_spark

pytestmark = pytest.mark.slow

needs_spark = pytest.mark.skipif(bool(why_not_spark()), reason=f"Spark cannot run here: {why_not_spark()}")


@contextmanager
def _going_on_without_spark(directory: Path, *flags: str) -> Iterator[tuple[Served, Client]]:
    """A broker that wanted Spark, and delivers without it."""
    served = Served(directory, "--pipeline", "spark", "--flight-port", "-1", *flags).start()
    try:
        with Client(served.endpoint) as client:
            client.send("orders", b"all the same", delay="100ms")
            (message,) = client.receive_batch("orders", group="g", wait="20s")
            assert message.body == b"all the same"
            yield served, client
            assert client.status().fields["pipeline"]["runner"] == "embedded"
    finally:
        served.stop()


def _wait_for_problem(client: Client, words: str) -> None:
    wait_for(
        f"the status says {words!r}", lambda: words in str(client.status().fields["pipeline"]["problem"])
    )


def _lines_about(served: Served, words: str) -> list[str]:
    return [line for line in served.log().splitlines() if words in line]


def _java_home(directory: Path, version: str) -> Path:
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2018-10-16' >&2\n")
    java.chmod(0o755)
    return directory


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with _going_on_without_spark(tmp_path / "data") as (served, client):
        _wait_for_problem(client, "there is no Java; install Java 17 or newer, or use --pipeline embedded")
        assert len(_lines_about(served, "there is no Java")) == 1


@pytest.mark.parametrize(("version", "major"), [("11.0.2", 11), ("1.8.0_292", 8)])
def test_java_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, major: int) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java_home(tmp_path / "old", version)))
    said = f"Java {major} is too old; Spark needs Java 17 or newer (set JAVA_HOME)"
    with _going_on_without_spark(tmp_path / "data") as (served, client):
        _wait_for_problem(client, said)
        assert len(_lines_about(served, said)) == 1


@needs_spark
def test_java_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java_home(tmp_path / "broken", "17.0.1")))
    with _going_on_without_spark(tmp_path / "data") as (_, client):
        _wait_for_problem(client, "Spark's Java process did not start; see spark.log")


@needs_spark
def test_unreachable_master(tmp_path: Path) -> None:
    master = "spark://127.0.0.1:1"
    said = f"no Spark master answers at {master}; start it, or correct --spark-master"
    with _going_on_without_spark(tmp_path / "data", "--spark-master", master) as (served, client):
        _wait_for_problem(client, said)
        first_pid = served.broker_pids()
        wait_for("it tries again", lambda: (served.directory / "spark.log").read_text().count(said) >= 2)
        assert len(_lines_about(served, said)) == 1, "said once, however often it is tried"
        assert served.broker_pids() == first_pid


@needs_spark
def test_a_port_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        configuration = tmp_path / "conf"
        configuration.mkdir()
        (configuration / "spark-defaults.conf").write_text(
            f"spark.driver.port {taken.getsockname()[1]}\nspark.port.maxRetries 0\n"
        )
        monkeypatch.setenv("SPARK_CONF_DIR", str(configuration))
        with _going_on_without_spark(tmp_path / "data") as (_, client):
            _wait_for_problem(client, "a port configured for Spark is in use")


@needs_spark
def test_workers_of_another_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(other_python(tmp_path)))
    said = f"Spark's workers run Python 3.99 and the driver runs Python {OWN_VERSION}; set PYSPARK_PYTHON to"
    with socket.socket() as master:
        master.bind(("127.0.0.1", 0))
        master.listen()
        flags = ("--spark-master", f"spark://127.0.0.1:{master.getsockname()[1]}")
        with _going_on_without_spark(tmp_path / "data", *flags) as (served, client):
            _wait_for_problem(client, said)
            assert len(_lines_about(served, said)) == 1


@pytest.mark.parametrize("master", ["nowhere", "spark://", "local[many]", "yarn"])
def test_a_master_that_cannot_be(tmp_path: Path, master: str) -> None:
    refused = run("serve", "--data", tmp_path / "data", "--port", "0", "--spark-master", master)
    assert refused.returncode == 2
    assert f"spark-master {master!r} is unknown; use local[*]" in one_line_on_stderr(refused)


def test_our_own_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = run("serve", "--data", tmp_path / "data", "--port", str(port))
    assert refused.returncode != 0
    assert f"cannot listen on 127.0.0.1:{port}" in one_line_on_stderr(refused)
