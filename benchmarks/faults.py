"""The faults that a served broker with Spark must survive, one after another.

Owns the list and its order. A fault finds Spark at the wheel and ends when it is there again, or never was
away; but for the deleted checkpoint, after which the broker is killed beside a pipeline that just starts. The
load goes on all the while. `python -m benchmarks faults` measures how late messages are during each;
the fault tests judge the rest: nothing lost, doubled or early.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fault_load import Load, Verdict
from benchmarks.served_spark import LEAD_MS, ServedSpark, wait_until_gone
from tidemill.cli.child_processes import wait_for
from tidemill.core.clock import machine_ms
from tidemill.core.errors import StorageError
from tidemill.core.processes import descendants, is_alive

_PER_LEAD = LEAD_MS // 5  # messages: two hundred a second


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    meaning: str
    hurt: Callable[[ServedSpark, Load], None]
    takes_over: bool = False  # the broker must take the shards, or it is no such fault
    finds_spark: bool = True
    leaves_spark: bool = True


def hurt(serve: ServedSpark, load: Load, fault: Fault) -> None:
    """Let it happen, and wait until it is over."""
    if fault.finds_spark:
        serve.wait_for_step()
    with load.fault(fault.name):
        fault.hurt(serve, load)
        if fault.leaves_spark:
            serve.wait_for_spark()
        load.go_on()


def _nothing(serve: ServedSpark, load: Load) -> None:
    load.go_on(_PER_LEAD + _PER_LEAD // 2)


def _kill_worker(serve: ServedSpark, load: Load) -> None:
    os.kill(serve.stop_in_a_step(load.work), signal.SIGKILL)
    load.go_on(_PER_LEAD // 2)


def _hang_worker(serve: ServedSpark, load: Load) -> None:
    pid = serve.stop_in_a_step(load.work)
    wait_for("the broker takes the shard from a worker that hangs", lambda: not is_alive(pid))
    serve.wait_for_broker()


def _kill(serve: ServedSpark, pid: int) -> None:
    """A process of the pipeline that has others below it: they all end, and the broker takes over."""
    below = descendants(pid)
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(below)
    serve.wait_for_broker()


def _kill_java(serve: ServedSpark, load: Load) -> None:
    _kill(serve, serve.java())


def _kill_driver(serve: ServedSpark, load: Load) -> None:
    driver = serve.driver()
    _kill(serve, driver)
    if serve.driver() == driver:
        raise StorageError("the driver that was killed still runs")


def _stop_pipeline(serve: ServedSpark, load: Load) -> None:
    driver = serve.driver()
    pids = [driver, *descendants(driver)]
    begun_ms = machine_ms()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # a worker may just have ended
            os.kill(pid, signal.SIGSTOP)
    serve.wait_for_broker()
    wait_for("more than the lead passes", lambda: machine_ms() > begun_ms + LEAD_MS + 1_000)
    for pid in filter(is_alive, pids):
        os.kill(pid, signal.SIGCONT)


def _delete_checkpoint(serve: ServedSpark, load: Load) -> None:
    driver = serve.driver()
    shutil.rmtree(serve.directory / "timer" / "spark" / "checkpoint")
    wait_for("the query ends, and its driver", lambda: not is_alive(driver))


def _kill_broker(serve: ServedSpark, load: Load) -> None:
    serve.java()  # wait until there is one
    below = serve.below()
    with load.broker_is_away():
        serve.kill_broker()
        wait_until_gone(below)


def _kill_supervisor(serve: ServedSpark, load: Load) -> None:
    below = serve.below()
    with load.broker_is_away():
        serve.kill_supervisor()
        wait_until_gone(below)
        serve.start()


FAULTS = (
    Fault("none", "nothing is hurt", _nothing),
    Fault("worker_killed", "a Python worker is killed in the middle of a step", _kill_worker),
    Fault("worker_hangs", "a Python worker hangs in the middle of a step", _hang_worker, takes_over=True),
    Fault("stopped", "the pipeline is stopped for longer than the lead", _stop_pipeline, takes_over=True),
    Fault("java_killed", "Java is killed", _kill_java, takes_over=True),
    Fault("driver_killed", "the driver is killed", _kill_driver, takes_over=True),
    Fault("checkpoint_deleted", "the checkpoint is deleted", _delete_checkpoint, leaves_spark=False),
    Fault("broker_killed", "the broker is killed", _kill_broker, finds_spark=False),
    Fault("supervisor_killed", "the supervisor is killed", _kill_supervisor),
)


def run_faults(directory: Path, master: str, tell: Callable[[Fault, int], None]) -> Verdict:
    """All of them, on a serve and under a load of its own; `tell` hears of each before it happens."""
    serve = ServedSpark(directory / "data", master)
    load = Load(serve)
    try:
        serve.start()
        serve.wait_for_spark()
        load.start()
        for number, fault in enumerate(FAULTS):
            tell(fault, number)
            hurt(serve, load, fault)
        return load.settle()
    finally:
        load.stop()
        serve.stop()
