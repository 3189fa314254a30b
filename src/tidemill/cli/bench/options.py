"""The options that every bench takes, said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DataOption = Annotated[
    Path | None, typer.Option(help="where to work; a new folder in it is removed at the end")
]
JsonOption = Annotated[bool, typer.Option("--json", help="one flat JSON object")]
QuickOption = Annotated[bool, typer.Option("--quick", help="small counts: does it run, not how fast")]
