"""`tidemill backup DIR`: a consistent copy of a live broker. To restore, open the copy."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tidemill.cli.connecting import EndpointOption, JsonOption, connect
from tidemill.cli.output import bar
from tidemill.client.answers import Backup
from tidemill.client.client import Client

_LOOK_EVERY_S = 0.3


def backup(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new directory, on its machine.")],
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
) -> int:
    """Copy a live broker into a new directory; `tidemill serve --data DIR` opens the copy."""
    with connect(endpoint) as client:
        copy = _watched(client, str(directory.absolute()))
    if is_json:
        print(json.dumps(asdict(copy)))
    else:
        print(f"{copy.directory}: {copy.bytes:,} bytes in {copy.files} files, {copy.pending:,} wait")
    return 0


def _watched(client: Client, directory: str) -> Backup:
    """Ask for the copy and look how far it is until it is there."""
    with ThreadPoolExecutor(1) as thread, bar("copying the log") as advance:
        copying = thread.submit(client.backup, directory)
        while True:
            try:
                return copying.result(_LOOK_EVERY_S)
            except TimeoutError:
                if copying.done():
                    raise
                advance(*client.backup_progress())
