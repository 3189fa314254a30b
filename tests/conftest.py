"""What every test stands on: no settings leak in from the environment, and Java starts quickly."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

# Before anything of ours is imported: a developer's own settings must not change what a test sees.
for _name in [name for name in os.environ if name.startswith("TIDEMILL_") and name != "TIDEMILL_SEEDS"]:
    del os.environ[_name]

# Tests start Java many times and never run it for long: compiling little is a third less work each time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

_OPEN_FILES_MANY = 300


@pytest.fixture(autouse=True)
def _files_of_the_killed_are_closed() -> Iterator[None]:
    """What a simulated crash leaves behind holds mapped files until it is collected, which may be late."""
    yield
    if len(os.listdir("/proc/self/fd")) > _OPEN_FILES_MANY:
        gc.collect()
