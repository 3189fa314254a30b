"""`tidemill serve` with a limit of one second in place of two minutes, so that a test can see it pass."""

from __future__ import annotations

from tidemill.cli.main import main
from tidemill.server.process import envoy

if __name__ == "__main__":
    envoy._REQUEST_SECONDS = 1
    main()
