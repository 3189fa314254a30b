"""The guard between a measurement and a server that is compared: ends the one with the other.

Run as `python -m benchmarks.server_guard SIGNAL USER PROGRAM …`: starts the program (as this user, if
one is named) and ends with it; when the pipe to the guard closes, which also happens when the measurement is
killed, it ends the program with the signal. Starts quickly: it imports next to nothing.
"""

from __future__ import annotations

import signal
import subprocess
import sys

from tidemill.core.parent_watch import when_untied


def _guard(ended_by: signal.Signals, user: str, command: list[str]) -> int:
    whom = {"user": user, "group": user, "extra_groups": ()} if user else {}
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, **whom)  # type: ignore[call-overload]
    when_untied(lambda: server.send_signal(ended_by))
    return int(server.wait())


if __name__ == "__main__":
    sys.exit(_guard(signal.Signals[sys.argv[1]], sys.argv[2], sys.argv[3:]))
