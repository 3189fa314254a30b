"""What every test stands on: no settings leak in from the environment, and Java starts quickly."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator

import pytest

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
