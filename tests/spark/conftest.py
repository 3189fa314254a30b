"""One Spark session and one `tidemill serve` for all tests of this directory: starting them is what costs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tidemill
from acceptance.command_line import run
from acceptance.serving import Served
from tidemill.server.process.pipeline_command import why_not_spark

_WITHOUT = why_not_spark()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "spark":
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.skipif(bool(_WITHOUT), reason=f"Spark cannot run here: {_WITHOUT}"))
            # PySpark leaves sockets of its workers to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(
        tmp_path_factory.mktemp("tables") / "data",
        *("--pipeline", "embedded", "--flight-port", "0", "--lead", "1s", "--tick", "100ms"),
    )
    yield served.start()
    served.stop()
    assert run("check", served.directory).returncode == 0


@pytest.fixture(scope="session")
def client(served: Served) -> Iterator[tidemill.Client]:
    with tidemill.Client(served.endpoint) as client:
        yield client


@pytest.fixture(scope="session")
def spark(tmp_path_factory, served):
    import tidemill.spark
    from tidemill.spark.session import quiet_session

    with pytest.MonkeyPatch.context() as patch:
        # Where the examples of the documents find the broker.
        patch.setenv("TIDEMILL_ENDPOINT", served.endpoint)
        with quiet_session(tmp_path_factory.mktemp("spark") / "log", "local[2,3]") as spark:
            tidemill.spark.register(spark)
            tidemill.spark.register(spark)  # again is no error
            yield spark


@pytest.fixture
def read(spark, served):
    def load(name: str, **options: str):
        return spark.read.format(name).options(endpoint=served.endpoint, **options).load()

    return load


@pytest.fixture
def write(served):
    def save(frame, **options: str) -> None:
        frame.write.format("tidemill").options(endpoint=served.endpoint, **options).mode("append").save()

    return save
