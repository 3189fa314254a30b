"""The tiers `make quick`, `make test` and `make full`: every marker selects tests, and the page names all."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from helpers import scheduling
from helpers.durations import table
from helpers.hypothesis_examples import FULL, QUICK, examples

_ROOT = Path(__file__).resolve().parent.parent
_TESTS = _ROOT / "tests"
_MAKEFILE = (_ROOT / "Makefile").read_text()
_PAGE = (_ROOT / "docs" / "testing.md").read_text()
_OPTIONS = tomllib.loads((_ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
_MARKERS = {marker.split(":")[0] for marker in _OPTIONS["markers"]}


def test_every_marker_is_used_and_a_tier_leaves_it_out() -> None:
    sources = [path.read_text() for path in _TESTS.rglob("*.py")]
    used = {name for name in _MARKERS if any(f"pytest.mark.{name}\n" in source for source in sources)}
    assert used == _MARKERS
    assert set(re.findall(r'-m "not (\w+)"', _MAKEFILE)) == _MARKERS
    assert set(re.findall(r"^- `(\w+)`: ", _PAGE, re.MULTILINE)) >= _MARKERS


def test_the_directories_that_are_slow_exist() -> None:
    (names,) = re.findall(
        r"^_SLOW = \((.*?)\)", (_TESTS / "conftest.py").read_text(), re.MULTILINE | re.DOTALL
    )
    listed = re.findall(r'"([\w./]+)"', names)
    assert listed
    assert not [name for name in listed if not (_TESTS / name).exists()]


def test_the_page_names_every_directory_of_tests() -> None:
    named = set(re.findall(r"^\| `tests/(\w+)/", _PAGE, re.MULTILINE))
    assert {path.relative_to(_TESTS).parts[0] for path in _TESTS.glob("*/**/test_*.py")} == named


def test_the_order_of_files_names_what_exists() -> None:
    assert not [name for name in scheduling.ORDER if not (_TESTS / name).exists()]


def test_long_files_come_first_and_seeds_last_each_as_a_piece_of_its_own() -> None:
    names = (
        "unit/core/test_levels.py",
        "simulation/test_crashes.py",
        "spark/test_commands.py",
        "test_docs.py",
    )
    ordered = sorted(names, key=lambda name: scheduling.place(_TESTS / name))
    assert ordered == [names[2], names[3], names[0], names[1]]
    assert scheduling.unit_of("tests/simulation/test_crashes.py::test_x[7]").endswith("test_x[7]")
    assert scheduling.unit_of("tests/unit/core/test_levels.py::test_x[7]") == "tests/unit/core/test_levels.py"


def test_durations_are_listed_by_directory_and_by_file_the_longest_first() -> None:
    spent = {"tests/unit/core/test_a.py": [1.0, 2.0], "tests/unit/log/test_b.py": [3.0, 4.0]}
    lines = table(spent | {"tests/test_docs.py": [0.5, 0.5]}).splitlines()
    assert [line.split() for line in lines[2:5]] == [
        ["4.5", "6.5", "total"],
        ["4.0", "6.0", "tests/unit"],
        ["0.5", "0.5", "tests/test_*.py"],
    ]
    assert [line.split()[-1] for line in lines[6:]] == [
        "tests/unit/log/test_b.py",
        "tests/unit/core/test_a.py",
        "tests/test_docs.py",
    ]


_NOT_IN_UNIT = re.compile(
    r"^\s*(?:import|from) (threading|multiprocessing|subprocess|socket|uvicorn|helpers\.http_broker)\b", re.M
)


def test_unit_tests_start_no_thread_no_process_and_no_server() -> None:
    files = (_TESTS / "unit").rglob("*.py")
    found = {path.name: names for path in files if (names := _NOT_IN_UNIT.findall(path.read_text()))}
    assert not found, "these belong in tests/integration"


@pytest.fixture
def profile(request: pytest.FixtureRequest) -> Iterator[None]:
    before = settings.get_current_profile_name()
    settings.load_profile(request.param)
    yield
    settings.load_profile(before)


@pytest.mark.parametrize(
    ("profile", "counts"), [(QUICK, (5, 3, 5)), (FULL, (240, 12, 400))], indirect=["profile"]
)
def test_a_property_test_looks_at_few_examples_in_quick_and_many_in_full(
    profile: None, counts: tuple[int, int, int]
) -> None:
    assert (examples(60), examples(3), settings().max_examples) == counts


def test_every_property_test_with_a_number_of_its_own_lowers_it_in_quick() -> None:
    found = [
        path.name for path in _TESTS.rglob("test_*.py") if re.search(r"max_examples=\d", path.read_text())
    ]
    assert not found, "write max_examples=examples(…)"


def test_the_file_of_durations_is_no_file_of_tests() -> None:
    """pytest takes a word that names an existing file for a path of tests until its plugins are loaded."""
    assert "--record-durations=" in _MAKEFILE
