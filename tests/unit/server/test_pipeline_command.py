"""What keeps Spark from running on a machine is reported before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.core.config import BrokerSettings
from tidemill.core.errors import RequestError
from tidemill.pipeline.settings import PipelineSettings
from tidemill.server.process.pipeline_command import check_master, pipeline_command, why_not_spark
from tidemill.timer.settings import TimerSettings

pytest.importorskip("pyspark", reason="PySpark is not installed")


def test_a_java_home_without_java_is_named_even_if_there_is_another_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark would look nowhere else."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "java").write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    (other / "java").chmod(0o755)
    monkeypatch.setenv("PATH", f"{other}:/usr/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    said = why_not_spark()
    assert said.startswith(f"JAVA_HOME names {tmp_path / 'nowhere'}, where there is no Java; correct it")
    monkeypatch.setenv("JAVA_HOME", "")
    assert why_not_spark() == ""


@pytest.mark.parametrize(
    "master", ["local", "local[*]", "local[4]", "local[4,2]", "local-cluster[2,1,512]", "spark://a:1,b:2"]
)
def test_masters_that_spark_knows(master: str) -> None:
    check_master(master)


@pytest.mark.parametrize(
    ("master", "words"),
    [
        ("local[0]", "is unknown; use"),
        ("local-cluster[0,1,1024]", "is unknown; use"),
        ("local-cluster[2,1,256]", "gives each worker 256 MB, and one needs 512 MB"),
        ("yarn", "is unknown; use"),
    ],
)
def test_masters_that_could_not_work(master: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        check_master(master)


@pytest.mark.parametrize(
    "settings",
    [
        BrokerSettings(),
        BrokerSettings(tick_ms=100, shards=3, wheel_slots=2_000_000, roll_window_ms=86_400_000),
        BrokerSettings(timer_store="rocksdb"),
    ],
)
def test_the_pipeline_keeps_its_timers_in_the_shape_that_the_broker_expects(
    tmp_path: Path, settings: BrokerSettings
) -> None:
    """A shard of another shape is dropped and built again: the two would do that in turns."""
    command = pipeline_command("python3", tmp_path, settings, "local[*]")
    assert PipelineSettings.from_json(command[-1]).timer == TimerSettings.of(settings)
