"""The pipeline's process as the broker sees it. Small processes stand in for Spark; the clock is ours."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest

from tidemill.broker.control.pipeline_process import PipelineProcess, PipelineState
from tidemill.core.clock import stopwatch_s
from tidemill.core.processes import children, descendants, is_alive, kill

PATIENCE_S = 120.0
_NAP_S = 0.005

_CHILD = """
import json, subprocess, sys
def report(event, **facts):
    print(json.dumps({"event": event, **facts}), flush=True)
"""


_READY = "report('ready')"
_NOTICES_NOTHING = "import time; time.sleep(900)"
# Below it a process that notices nothing, as Java would that hangs.
_READY_ABOVE_ANOTHER = f"subprocess.Popen([sys.executable, '-S', '-c', {_NOTICES_NOTHING!r}])\n{_READY}"


def _stays(reports: str) -> str:
    """A process that stays as the driver does: until its pipe closes."""
    return f"{_CHILD}{reports}\nsys.stdin.read()\n"


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def start(tmp_path: Path, clock: Clock) -> Iterator[Callable[[str], PipelineProcess]]:
    started: list[PipelineProcess] = []

    def begin(script: str) -> PipelineProcess:
        process = PipelineProcess([sys.executable, "-S", "-c", script], tmp_path / "spark.log", clock)
        started.append(process)
        process.tend()
        return process

    yield begin
    for process in started:
        if process.pid is not None:
            kill(descendants(process.pid))
        process.close()


def _wait(what: str, is_so: Callable[[], bool]) -> None:
    until_s = stopwatch_s() + PATIENCE_S
    while not is_so():
        assert stopwatch_s() < until_s, f"gave up waiting: {what}"
        Event().wait(_NAP_S)


def _wait_for(process: PipelineProcess, name: str) -> PipelineState:
    _wait(name, lambda: process.tend().name == name)
    return process.state()


def _let_pass(process: PipelineProcess, clock: Clock, ms: int) -> None:
    """Time passes as the broker sees it: in many small looks."""
    for _ in range(ms // 250):
        clock.now_ms += 250
        process.tend()


def test_it_is_starting_until_it_says_that_it_is_ready(start) -> None:
    process = start(_stays(""))
    assert process.state() == PipelineState("starting")
    process = start(_stays(_READY))
    assert _wait_for(process, "ready").problem == ""


def test_the_reason_of_its_end_is_reported_once_and_it_is_started_again(start, clock, caplog) -> None:
    process = start(_CHILD + "report('failed', why='no space')")
    assert _wait_for(process, "stopped").problem == "no space"
    for _ in range(3):
        clock.now_ms += 60_000  # longer than any pause
        assert process.tend().name == "starting"
        assert _wait_for(process, "stopped").problem == "no space"
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


def test_what_it_waits_for_is_reported_while_it_starts(start, caplog) -> None:
    process = start(_stays("report('waiting', why='no workers')\nreport('alive')"))
    _wait("it says why", lambda: process.state() == PipelineState("starting", "no workers"))
    assert "no workers" in caplog.text
    process = start(_stays(f"report('waiting', why='no workers')\n{_READY}"))
    assert _wait_for(process, "ready").problem == ""


def test_one_that_hangs_is_ended_with_all_below_it_and_started_again(start, clock) -> None:
    process = start(_stays(_READY_ABOVE_ANOTHER))
    _wait_for(process, "ready")
    first = process.pid
    assert first is not None
    below = children(first)
    assert len(below) == 1
    _let_pass(process, clock, 30_000)
    assert process.pid == first
    assert "does not report" in process.state().problem
    assert process.state().name == "silent"
    _let_pass(process, clock, 31_000)
    assert process.pid != first
    _wait("both are gone", lambda: not is_alive(first) and not any(map(is_alive, below)))
    clock.now_ms += 1_000
    _wait_for(process, "ready")
    assert process.pid != first


def test_every_step_that_it_reports_is_timed(start) -> None:
    steps = "report('alive', batch=3, step_ms=40, steps_ms=[300, 40])"
    process = start(_stays(f"{_READY}\n{steps}\nreport('alive', batch=3, step_ms=40, steps_ms=[])"))
    _wait("it says how long they took", lambda: sum(process.step_durations.counts) == 2)
    assert process.step_durations.sum_s == pytest.approx(0.34)


def test_a_broker_that_stood_still_itself_ends_no_process(start, clock) -> None:
    process = start(_stays(_READY))
    _wait_for(process, "ready")
    first = process.pid
    clock.now_ms += 3_600_000
    process.tend()
    assert process.pid == first


def test_what_keeps_it_from_starting_does_not_stop_the_broker(start, clock, tmp_path, caplog) -> None:
    """The broker runs the timer at once: what is wrong with Spark must not keep it from that."""
    (tmp_path / "spark.log").mkdir()
    process = start(_stays(_READY))
    assert process.state().name == "stopped"
    assert "the pipeline cannot be started" in process.state().problem
    process.tend()
    assert caplog.text.count("the pipeline cannot be started") == 1
    (tmp_path / "spark.log").rmdir()
    clock.now_ms += 60_000
    _wait_for(process, "ready")


def test_its_log_does_not_grow_for_ever(start, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tidemill.broker.control.pipeline_process._LOG_BYTES_MAX", 100)
    log = tmp_path / "spark.log"
    log.write_text("x" * 101)
    _wait_for(start(_stays(_READY)), "ready")
    assert log.read_text() == ""
    assert log.with_suffix(".log.old").read_text() == "x" * 101
    log.write_text("y" * 100)
    _wait_for(start(_stays(_READY)), "ready")
    assert log.read_text() == "y" * 100
