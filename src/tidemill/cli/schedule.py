"""`tidemill schedule FILE`: every row of a file as a message, through the door for volume.

Reads Parquet, Arrow, CSV and JSON lines, part by part, so that a file need not fit into memory. Columns are
those of docs/flight.md. A row that is refused is counted and the first few are said; the others are stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemill.cli.connecting import EndpointOption, JsonOption, connect, usage
from tidemill.cli.output import bar
from tidemill.client.scheduled import Scheduled
from tidemill.core.errors import RequestError, TidemillError
from tidemill.core.send_batch import Answer

_ROWS = 1 << 17
_SAID_MAX = 5
_TEXTS = ("topic", "body", "id", "key", "tag", "message_group", "properties")
_NUMBERS = ("delay_ms", "level")
_FORMATS = {
    ".parquet": "parquet",
    ".arrow": "ipc",
    ".feather": "ipc",
    ".csv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
}


def schedule(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Parquet, Arrow, CSV or JSON lines.")],
    topic: Annotated[str | None, typer.Option(help="Where to, unless a column `topic` says.")] = None,
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
) -> int:
    """Send every row of a file: a column `body`, and `delay_ms` or `deliver_at`, `key` and others."""
    dataset = _dataset(file)
    stored = 0
    refused: list[Exception] = []
    with connect(endpoint) as client, bar("scheduling", "rows") as advance:
        total = dataset.count_rows()
        for part in _parts(dataset):
            answers = client.schedule(part, topic=topic)
            wrong = _errors_in(answers)
            stored += len(answers) - len(wrong)
            refused += wrong
            advance(stored + len(refused), total)
    _say(file, stored, refused, is_json)
    return 1 if refused else 0


def _dataset(file: Path) -> Any:
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyarrow import csv

    if not file.is_file():
        raise RequestError(f"{file} is not a file; name one with a row for each message")
    kind = _FORMATS.get(file.suffix.lower())
    if kind is None:
        raise usage(f"{file.name} is of no known kind; name it {', '.join(sorted(_FORMATS))}")
    # A body or key of digits is still a text, and a delay is a number.
    types = dict.fromkeys(_TEXTS, pa.string()) | dict.fromkeys(_NUMBERS, pa.int64())
    options = csv.ConvertOptions(column_types=types)
    form: Any = ds.CsvFileFormat(convert_options=options) if kind == "csv" else kind
    try:
        return ds.dataset(file, format=form)
    except (pa.ArrowInvalid, OSError) as error:
        raise RequestError(f"{file} cannot be read as {kind}: {_cause(error)}") from None


def _parts(dataset: Any) -> Iterator[Any]:
    """Tables of at most some 100,000 rows, in the file's order."""
    import pyarrow as pa

    try:
        for batch in dataset.to_batches(batch_size=_ROWS):
            if batch.num_rows:
                yield pa.Table.from_batches([batch])
    except pa.ArrowInvalid as error:
        raise RequestError(f"the file cannot be read any further: {_cause(error)}") from None


def _cause(error: Exception) -> str:
    """What is wrong with the file, without all that pyarrow was about to do with it."""
    return str(error).rsplit("Invalid: ", 1)[-1]


def _errors_in(answers: Sequence[Answer]) -> list[Exception]:
    """What was refused; a table's answers know it without looking at every row."""
    if isinstance(answers, Scheduled):
        return list(answers.errors.values())
    return [answer for answer in answers if isinstance(answer, TidemillError)]


def _say(file: Path, stored: int, refused: list[Exception], is_json: bool) -> None:
    if is_json:
        errors = [str(error) for error in refused[:_SAID_MAX]]
        print(json.dumps({"stored": stored, "refused": len(refused), "errors": errors}))
        return
    for error in refused[:_SAID_MAX]:
        print(f"refused: {error}")
    if len(refused) > _SAID_MAX:
        print(f"and {len(refused) - _SAID_MAX:,} more")
    print(f"{file}: {stored:,} stored, {len(refused):,} refused")
