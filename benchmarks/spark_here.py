"""Whether Spark can run here, and the option that says where: for the campaigns that need it."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemill.core.errors import StorageError
from tidemill.server.process.pipeline_command import check_master, why_not_spark

SparkOption = Annotated[str, typer.Option(help="where Spark runs")]


def require_spark(master: str) -> None:
    """An error that says what is missing."""
    check_master(master)
    if problem := why_not_spark():
        raise StorageError(problem)
