"""Which worker of pytest-xdist runs which test, and in what order: long files first, small pieces last.

Owns the unit of work. A file is one, because its fixtures are shared; but a simulated seed stands alone, and
all that use the Spark session of the process are one. Directories are in the order of what a file of theirs
takes, so that no worker begins a long file when the others are at their end.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

_TESTS = Path(__file__).resolve().parents[1]
_SEEDS = "tests/simulation/"
_SPARK = "tests/spark/"
# Files and directories in the order in which they begin; what is not named comes after the directories here.
ORDER = (
    "pipeline",
    "spark",
    "test_docs_site.py",
    "browser",
    "benchmarks",
    "integration/cli",
    "acceptance",
    "deploy",
    "integration",
    "test_docs.py",
    "property",
)
_LAST = "simulation"


def place(path: Path) -> int:
    """Where a file of tests comes in the order: the lower, the earlier."""
    inside = path.relative_to(_TESTS)
    if inside.parts[0] == _LAST:
        return len(ORDER) + 1
    found = (at for at, name in enumerate(ORDER) if inside.is_relative_to(name))
    return next(found, len(ORDER))


def unit_of(nodeid: str) -> str:
    """The unit of work that a test belongs to."""
    file = nodeid.partition("::")[0]
    if file.startswith(_SEEDS):
        return nodeid
    return _SPARK if file.startswith(_SPARK) else file


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: place(item.path))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    config.option.loadscopereorder = False  # as collected, not by the number of tests
    return Units(config, log)
