"""How long each file of tests takes: recorded in every run, for `make test` to start the longest first.

Owns the processor time (of the test process and of the processes it started and waited for) and the time by
the clock of every file, and the table that `--record-durations` writes. Under xdist each worker measures, and
the one that collects writes.
"""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).resolve().parents[2]

_spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])  # by file: processor, clock


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-durations", metavar="FILE", help="write the time of each file of tests here")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    processor_s, clock_s = _processor_s(), time.perf_counter()
    try:
        return (yield)
    finally:
        spent = _spent[item.path.relative_to(_ROOT).as_posix()]
        spent[0] += _processor_s() - processor_s
        spent[1] += time.perf_counter() - clock_s


def _processor_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    for name, (processor_s, clock_s) in getattr(node, "workeroutput", {}).get("durations", {}).items():
        spent = _spent[name]
        spent[0] += processor_s
        spent[1] += clock_s


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["durations"] = dict(_spent)


def pytest_terminal_summary(config: pytest.Config) -> None:
    place = config.getoption("--record-durations")
    if place and not hasattr(config, "workerinput"):  # a worker of xdist has only its own part
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).write_text(table(_spent))


def table(spent: dict[str, list[float]]) -> str:
    """Seconds of processor and of clock: of each directory, then of each file, the longest first."""
    directories: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for name, times in spent.items():
        for total in (directories["total"], directories[directory_of(name)]):
            total[0] += times[0]
            total[1] += times[1]
    lines = ["processor s    clock s"]
    for part in (directories, spent):
        ordered = sorted(part.items(), key=lambda pair: -pair[1][0])
        lines += ["", *(f"{times[0]:11.1f}{times[1]:11.1f}  {name}" for name, times in ordered)]
    return "\n".join(lines) + "\n"


def directory_of(name: str) -> str:
    """The directory of a file as docs/testing.md lists it."""
    parts = Path(name).parts
    return "/".join(parts[:2]) if len(parts) > 2 else "tests/test_*.py"
