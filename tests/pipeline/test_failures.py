"""What keeps the pipeline from running is reported in one line that says what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.worker_util import check_python_version

from pipeline.other_pythons import OWN_VERSION, bare_python, other_python, wrapped_python
from tidemill.core.errors import StorageError
from tidemill.pipeline.failures import explain, require_same_python


def test_a_worker_of_another_python_is_recognised_by_what_it_says_itself() -> None:
    with pytest.raises(PySparkException) as caught:
        check_python_version("3.99")
    said = explain(caught.value)
    assert said == (
        f"Spark's workers run Python {OWN_VERSION} and the driver runs Python 3.99; set PYSPARK_PYTHON to a "
        "Python 3.99 that has tidemill installed"
    )
    # In the failure of a query it stands in the middle of much else.
    assert explain(RuntimeError(f"Job aborted\nTask 0 failed: {caught.value}\n\tat org.apache")) == said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "Spark's Java process ended"),
        (OSError(28, "No space left on device"), "no space left on the disk for Spark's files"),
        (RuntimeError("File x/checkpoint/offsets/3 does not exist"), "Spark's checkpoint was deleted"),
        (RuntimeError("\n\n  something new \n at org.apache"), "something new"),
    ],
)
def test_every_complaint_becomes_one_line(error: Exception, said: str) -> None:
    line = explain(error)
    assert line.startswith(said)
    assert "\n" not in line


@pytest.mark.slow
def test_another_python_is_reported_before_spark_is_started(tmp_path: Path) -> None:
    said = f"workers run Python 3.99 and the driver runs Python {OWN_VERSION}"
    with pytest.raises(StorageError, match=said):
        require_same_python(str(other_python(tmp_path)))


@pytest.mark.slow
def test_a_python_without_tidemill_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="workers cannot import tidemill; install tidemill for the Python"):
        require_same_python(str(bare_python(tmp_path)))


@pytest.mark.slow
def test_a_python_that_ends_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="ended with code 3"):
        require_same_python(str(wrapped_python(tmp_path, "exit 3")))


def test_a_python_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"PYSPARK_PYTHON names .*nowhere, which does not run here"):
        require_same_python(str(tmp_path / "nowhere"))


@pytest.mark.slow
def test_our_own_python_by_whatever_name_is_fine(tmp_path: Path) -> None:
    require_same_python(sys.executable)
    require_same_python(str(wrapped_python(tmp_path, f'exec {sys.executable} "$@"')))
