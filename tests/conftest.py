"""What all tests share: no settings leak in from the environment, and Java starts quickly.

A test gets its tier here too: `slow` and `long` are markers, which docs/testing.md explains. What is listed
is slow as a whole; elsewhere files and tests carry the marker themselves.
"""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from helpers.hypothesis_examples import register_profiles

if TYPE_CHECKING:
    from helpers.small_broker import SmallBroker

pytest_plugins = ["helpers.durations", "helpers.scheduling"]

# They start processes, whole brokers or a browser, or wait in real time.
_SLOW = (
    "acceptance",
    "benchmarks",
    "browser",
    "deploy",
    "integration",
    "pipeline",
    "spark",
    "test_docs.py",
    "test_docs_site.py",
    "unit/broker/test_full_disk.py",
    "unit/cli/test_damaged_files.py",
    "unit/server/test_http_api.py",
    "unit/server/test_permissions_http.py",
)

# Before anything of ours is imported: a developer's own settings must not change what a test sees.
for _name in [name for name in os.environ if name.startswith("TIDEMILL_") and not name.endswith("SEEDS")]:
    del os.environ[_name]

# Tests start Java many times and never run it for long: compiling little is a third less work each time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

_FILES_WANTED = 16_384
# Several brokers, their mapped files and Spark share one test process; a thousand files are soon too few.
_files, _files_most = resource.getrlimit(resource.RLIMIT_NOFILE)
if 0 <= _files < _FILES_WANTED <= _files_most:
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES_WANTED, _files_most))

register_profiles()

_SLOW_PATHS = {Path(__file__).parent / name for name in _SLOW}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What `make quick` would leave out whole is not even imported."""
    is_quick = config.option.markexpr == "not slow"
    return True if is_quick and _is_slow(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_slow(item.path):
            item.add_marker(pytest.mark.slow)


def _is_slow(path: Path) -> bool:
    return not {path, *path.parents}.isdisjoint(_SLOW_PATHS)


@pytest.fixture
def make_small(tmp_path: Path) -> Iterator[Callable[..., SmallBroker]]:
    """Makes small brokers with settings of the test's own; all are checked at the end."""
    from helpers.small_broker import SmallBroker

    made: list[SmallBroker] = []

    def make(**settings: Any) -> SmallBroker:
        made.append(SmallBroker(tmp_path / f"data-{len(made)}", **settings))
        return made[-1]

    yield make
    for small in made:
        small.check()
        small.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallBroker]:
    """An empty small broker, checked against its own log when the test is over."""
    from helpers.small_broker import SmallBroker

    small = SmallBroker(tmp_path / "data")
    yield small
    small.check()
    small.close()


_MANY_MORE = 300
_open_after_collection = 0


@pytest.fixture(autouse=True)
def _files_of_the_killed_are_closed() -> Iterator[None]:
    """What a simulated crash leaves behind holds mapped files until it is collected, which may be late."""
    global _open_after_collection
    yield
    if _open_files() > _open_after_collection + _MANY_MORE:
        gc.collect()
        _open_after_collection = _open_files()


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
