"""`tidemill serve` as a child process: it shuts down cleanly when its parent ends, however that ends.

Run as `python -m tidemill.cli.tied_serve --data …`, with the flags of `serve`.
"""

from __future__ import annotations

import os
import signal
import sys

from tidemill.cli.main import run
from tidemill.core.parent_watch import when_untied


def main() -> None:
    when_untied(lambda: os.kill(os.getpid(), signal.SIGTERM))
    sys.exit(run(["serve", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
