"""The pipeline's process, as the broker sees it: started, listened to, started again when it dies.

Owns the child process and what it last reported. The child ends when its standard input closes, so it never
outlives the broker. One that worked and then says nothing for a minute hangs: it is ended, with all processes
below it, and started again. What it reports: JSON lines (see pipeline/driver.py). Its own output goes to a
file; the broker's log has one line only when something is wrong.
"""

from __future__ import annotations

import json
import logging
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tidemill.core.histogram import Histogram
from tidemill.core.limits import MIB
from tidemill.core.processes import descendants, kill

logger = logging.getLogger(__name__)

_PAUSE_MS_FIRST = 1_000
_PAUSE_MS_MAX = 60_000
_SILENT_MS = 5_000
_HANGS_MS = 60_000
# Between two looks no more than this counts as silence: perhaps it was we who stood still.
_LOOK_MS_MAX = 1_000
_CLOSE_S = 5
_LAST_WORDS_S = 0.2  # what was left to say is heard in a moment; what it started may keep its pipe for longer
_LOG_BYTES_MAX = 16 * MIB
_SAYS_NOTHING = (
    f"the Spark pipeline does not report; after {_HANGS_MS // 1_000} s without a report it is restarted"
)


@dataclass(frozen=True, slots=True)
class PipelineState:
    """What is known of the process. `problem` says what is wrong and what to do."""

    name: str  # starting, ready, silent, stopped
    problem: str = ""


@dataclass(frozen=True, slots=True)
class LastStep:
    """The last step the process finished: its number since the start, and what it took."""

    number: int = -1
    took_ms: int = 0


class PipelineProcess:
    """One child process at a time. `tend` keeps it alive; thread-safe."""

    def __init__(self, command: Sequence[str], log_path: Path, machine_ms: Callable[[], int]) -> None:
        self._command = list(command)
        self._log_path = log_path
        self._machine_ms = machine_ms
        self._lock = threading.Lock()  # protects what was reported
        self._process: subprocess.Popen[str] | None = None
        self._listener: threading.Thread | None = None
        self._is_ready = False
        self._heard_at_ms = 0
        self._silence_ms = self._tended_at_ms = 0
        self._problem = ""
        self.last_step = LastStep()
        self.step_durations = Histogram()  # of all steps, but for the first of each process
        self._said = ""  # the problem logged last
        self._pause_ms = _PAUSE_MS_FIRST
        self._start_at_ms = 0

    def tend(self) -> PipelineState:
        """Start the process if it is not running and its time has come; says how it is."""
        now_ms = self._machine_ms()
        process = self._process
        if process is not None and self._hangs(now_ms):
            self._end(process)
        if process is not None and process.poll() is not None:
            self._bury(process, now_ms)
            process = None
        if process is None and now_ms >= self._start_at_ms:
            self._start(now_ms)
        return self.state()

    def state(self) -> PipelineState:
        with self._lock:
            if self._process is None:
                return PipelineState("stopped", self._problem)
            if not self._is_ready:
                return PipelineState("starting", self._problem)
            if self._machine_ms() - self._heard_at_ms > _SILENT_MS:
                return PipelineState("silent", _SAYS_NOTHING)
            return PipelineState("ready", "")

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def close(self) -> None:
        """End the process: first by closing its pipe, then by force."""
        process, self._process = self._process, None
        self._start_at_ms = 1 << 62
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._end(process)

    def _hangs(self, now_ms: int) -> bool:
        with self._lock:
            self._silence_ms += min(now_ms - self._tended_at_ms, _LOOK_MS_MAX)
            self._tended_at_ms = now_ms
            return self._is_ready and self._silence_ms > _HANGS_MS

    def _end(self, process: subprocess.Popen[str]) -> None:
        """By force, with everything below it: what hangs does not notice that a pipe was closed."""
        kill((process.pid, *descendants(process.pid)))
        process.wait()
        with self._lock:
            seconds, log = _HANGS_MS // 1_000, self._log_path.name
            self._problem = f"the Spark pipeline did not report for {seconds} s and was killed; see {log}"

    def _start(self, now_ms: int) -> None:
        try:
            self._keep_log_small()
            with self._log_path.open("ab") as log:
                process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
                )
        except OSError as error:
            self._cannot_start(error, now_ms)
            return
        with self._lock:
            self._process, self._is_ready, self._heard_at_ms = process, False, now_ms
            self._silence_ms, self._tended_at_ms = 0, now_ms
        assert process.stdout is not None
        self._listener = threading.Thread(
            target=self._listen, args=(process, process.stdout), name="tidemill-pipeline", daemon=True
        )
        self._listener.start()

    def _keep_log_small(self) -> None:
        """A cluster that is away for a year is complained about every minute; the last of it is enough."""
        if self._log_path.exists() and self._log_path.stat().st_size > _LOG_BYTES_MAX:
            self._log_path.replace(self._log_path.with_suffix(".log.old"))

    def _cannot_start(self, error: OSError, now_ms: int) -> None:
        with self._lock:
            self._problem = f"the pipeline cannot be started: {error}"
            self._say("%s. Retrying; see status")
        self._start_at_ms = now_ms + self._pause_ms
        self._pause_ms = min(_PAUSE_MS_MAX, self._pause_ms * 2)

    def _listen(self, process: subprocess.Popen[str], reports: IO[str]) -> None:
        with reports:
            for line in reports:
                self._hear(process, line)

    def _hear(self, process: subprocess.Popen[str], line: str) -> None:
        try:
            report = json.loads(line)
        except ValueError:
            return  # some library wrote to standard output
        with self._lock:
            if process is not self._process:
                return
            self._heard_at_ms = self._machine_ms()
            self._silence_ms = 0
            if report.get("event") == "ready":
                self._is_ready, self._problem, self._pause_ms = True, "", _PAUSE_MS_FIRST
                self._said = ""
            elif report.get("event") == "alive":
                self.last_step = LastStep(int(report.get("batch", -1)), int(report.get("step_ms", 0)))
                for took_ms in report.get("steps_ms", []):
                    self.step_durations.add(int(took_ms) / 1000)
            elif report.get("event") == "failed":
                self._problem = str(report.get("why", "unknown"))
            elif report.get("event") == "waiting":
                self._problem = str(report.get("why", "unknown"))
                self._say("the Spark pipeline waits: %s")

    def _bury(self, process: subprocess.Popen[str], now_ms: int) -> None:
        assert process.stdin is not None
        process.stdin.close()
        return_code = process.returncode
        if self._listener is not None:  # why it ended may be said and not heard yet
            self._listener.join(_LAST_WORDS_S)
        with self._lock:
            self._process, self._is_ready = None, False
            self._problem = (
                self._problem or f"the pipeline ended with code {return_code}; see {self._log_path.name}"
            )
            self._say("the Spark pipeline stopped: %s. Retrying; see status")
        self._start_at_ms = now_ms + self._pause_ms
        self._pause_ms = min(_PAUSE_MS_MAX, self._pause_ms * 2)

    def _say(self, text: str) -> None:
        """Log the problem, once as long as it is the same."""
        if self._problem != self._said:
            logger.warning(text, self._problem)
            self._said = self._problem
