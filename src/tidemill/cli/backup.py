"""`tidemill backup DIR`: a consistent copy of a live broker. To restore, open the copy."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tidemill.cli.connecting import EndpointOption, JsonOption, connect


def backup(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new directory, on its machine.")],
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
) -> int:
    """Copy a live broker into a new directory; `tidemill serve --data DIR` opens the copy."""
    with connect(endpoint) as client:
        copy = client.backup(str(directory.absolute()))
    if is_json:
        print(json.dumps(asdict(copy)))
    else:
        print(f"{copy.directory}: {copy.bytes:,} bytes in {copy.files} files, {copy.pending:,} wait")
    return 0
