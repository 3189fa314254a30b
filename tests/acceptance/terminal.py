"""A command in a real terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tidemill.core.clock import stopwatch_s

PATIENCE_S = 120.0


class Terminal:
    """A command with a terminal of its own, and what it has written so far."""

    def __init__(self, *arguments: str, endpoint: str = "") -> None:
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "TIDEMILL_ENDPOINT": endpoint, "COLUMNS": "120", "TERM": "xterm"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tidemill.cli.main", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            # As in a terminal; a shell's background job ignores it, and what it starts would do so too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        os.close(theirs)
        self.said = ""  # since the words that were waited for last
        self.all_said = ""
        self._poll = select.poll()
        self._poll.register(self._ours, select.POLLIN)

    def read_until(self, words: str) -> None:
        """Read on until these words come; what came before them is forgotten."""
        until_s = stopwatch_s() + PATIENCE_S
        while words not in self.said:
            assert stopwatch_s() < until_s, f"no {words!r} in {self.said[-2000:]!r}"
            if self._poll.poll(200):
                try:
                    text = os.read(self._ours, 65536).decode(errors="replace")
                except OSError:  # the command has ended
                    break
                self.said += text
                self.all_said += text
        assert words in self.said, self.said
        self.said = self.said.partition(words)[2]

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # so that it can end what it has started itself
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        os.close(self._ours)


@contextmanager
def terminal(*arguments: str, endpoint: str = "") -> Iterator[Terminal]:
    made = Terminal(*arguments, endpoint=endpoint)
    try:
        yield made
    finally:
        made.close()
