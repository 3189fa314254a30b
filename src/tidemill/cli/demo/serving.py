"""The demo's own `tidemill serve`: its flags, and the kills of the story."""

from __future__ import annotations

from pathlib import Path

from tidemill.cli.child_broker import ChildBroker
from tidemill.cli.demo.story import LEAD_MS, TICK_MS

_DRIVER = "tidemill.pipeline.driver"


class Serving(ChildBroker):
    """One serve on one directory, from the start."""

    def __init__(self, directory: Path, log: Path, pipeline: str) -> None:
        flags = ["--flight-port", "-1", "--pipeline", pipeline]
        flags += ["--lead", f"{LEAD_MS}ms", "--tick", f"{TICK_MS}ms"]
        super().__init__(directory, *flags, log=log)
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    def kill_spark(self) -> int:
        """SIGKILL to the pipeline's driver; returns its process id."""
        return self.kill_below(_DRIVER)
