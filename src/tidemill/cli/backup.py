"""`tidemill backup DIR`: a consistent copy of a live broker. To restore, open the copy."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tidemill.cli.connecting import client_command
from tidemill.cli.output import Answer, bar, watched
from tidemill.client.client import Client


@client_command
def backup(
    client: Client,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A new directory on the broker's machine.")
    ],
) -> Answer:
    """Copy a live broker into a new directory; `tidemill serve --data DIR` opens the copy."""
    with bar("copying the log") as advance:
        copy = watched(
            lambda: client.admin.backup(str(directory.absolute())),
            lambda: advance(*client.admin.backup_progress()),
        )
    text = f"{copy.directory}: {copy.bytes:,} bytes in {copy.files} files, {copy.pending:,} pending"
    return Answer(asdict(copy), text)
