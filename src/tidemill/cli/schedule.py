"""`tidemill schedule FILE`: every row of a file as a message, through the Flight endpoint.

Reads Parquet, Arrow, CSV and JSON lines, part by part, so that a file need not fit into memory. Columns are
those of docs/flight.md. Rejected rows are counted and the first few are printed; the others are stored, or
were stored before, which is counted apart: scheduling a file twice shows that nothing was doubled. An early
end, such as a file that is damaged further on, does not hide how much is stored by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemill.cli.arguments import usage
from tidemill.cli.connecting import client_command
from tidemill.cli.output import Answer, bar
from tidemill.cli.send import JitterOption
from tidemill.client.client import Client
from tidemill.client.tables.scheduled import Scheduled, StoredPart
from tidemill.core.errors import RequestError, TidemillError
from tidemill.core.model import SendResult
from tidemill.core.table_columns import COLUMNS, check_jitter_once, check_names

_ROWS = 1 << 17
_SAID_MAX = 5
_FORMATS = {
    ".parquet": "parquet",
    ".arrow": "ipc",
    ".feather": "ipc",
    ".csv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
}


@client_command
def schedule(
    client: Client,
    is_json: bool,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Parquet, Arrow, CSV or JSON lines.")],
    topic: Annotated[str | None, typer.Option(help="The topic of rows without a column `topic`.")] = None,
    jitter: JitterOption = None,
) -> int:
    """Send every row of a file: columns `body`, `delay_ms` or `deliver_at`, `key` and others."""
    dataset = _dataset(file)
    check_names(dataset.schema.names, topic)  # here, because no row may follow to be refused for it
    if jitter:
        check_jitter_once(dataset.schema.names)
    sent = _Sent()
    try:
        with bar("scheduling", "rows") as advance:
            total = _row_count(dataset)
            for part in _parts(dataset):
                sent.add(client.schedule(part, topic=topic, jitter=jitter or 0))
                advance(sent.rows, total)
    except TidemillError:
        if sent.rows:
            sent.answer(file).print(is_json)
        raise
    return sent.answer(file).print(is_json)


@dataclass(slots=True)
class _Sent:
    """The outcome of the rows so far."""

    rows: int = 0
    repeats: int = 0
    refused: list[Exception] = field(default_factory=list)

    @property
    def stored(self) -> int:
        return self.rows - self.repeats - len(self.refused)

    def add(self, answers: Scheduled) -> None:
        self.rows += len(answers)
        self.repeats += _repeats_in(answers)
        self.refused += answers.errors.values()

    def answer(self, file: Path) -> Answer:
        errors = [str(error) for error in self.refused[:_SAID_MAX]]
        counts = {"stored": self.stored, "repeats": self.repeats, "refused": len(self.refused)}
        return Answer({**counts, "errors": errors}, lambda: self._lines(file), not self.refused)

    def _lines(self, file: Path) -> Iterator[str]:
        for error in self.refused[:_SAID_MAX]:
            yield f"refused: {error}"
        if len(self.refused) > _SAID_MAX:
            yield f"and {len(self.refused) - _SAID_MAX:,} more"
        repeats = f"{self.repeats:,} were there before, " if self.repeats else ""
        yield f"{file}: {self.stored:,} stored, {repeats}{len(self.refused):,} refused"


def _dataset(file: Path) -> Any:
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyarrow import csv

    if not file.is_file():
        raise RequestError(f"{file} is not a file; name one with a row for each message")
    kind = _FORMATS.get(file.suffix.lower())
    if kind is None:
        raise usage(f"{file.name} is of no known kind; name it {', '.join(sorted(_FORMATS))}")
    # Read as texts: one value that is no number must not end the file, and a key of digits is a text anyway.
    options = csv.ConvertOptions(column_types=dict.fromkeys(COLUMNS, pa.string()))
    form: Any = ds.CsvFileFormat(convert_options=options) if kind == "csv" else kind
    try:
        return ds.dataset(file, format=form)
    except (pa.ArrowInvalid, OSError) as error:
        raise RequestError(f"{file} cannot be read as {kind}: {_cause(error)}") from None


def _row_count(dataset: Any) -> int:
    """How many rows there are, for the bar; 0 for a damaged file."""
    import pyarrow as pa

    try:
        return int(dataset.count_rows())
    except pa.ArrowInvalid:
        return 0


def _parts(dataset: Any) -> Iterator[Any]:
    """Tables of some 100,000 rows, in the file's order."""
    import pyarrow as pa

    is_csv = dataset.format.default_extname == "csv"
    try:
        for batch in dataset.to_batches(batch_size=_ROWS):
            if batch.num_rows:
                part = pa.Table.from_batches([batch])
                yield _typed(part) if is_csv else part
    except pa.ArrowInvalid as error:
        raise RequestError(f"the file cannot be read any further: {_cause(error)}") from None


def _typed(part: Any) -> Any:
    """A part of a CSV file with its times, levels and flags parsed, where all values allow it."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    numbers = (pa.int64(), pa.float64())
    moments = (*numbers, pa.timestamp("ns"), pa.timestamp("ns", "UTC"))
    kinds = {"delay_ms": numbers, "jitter_ms": numbers, "level": numbers, "once": (pa.bool_(),)}
    kinds |= dict.fromkeys(("deliver_at", "deliver_at_ms"), moments)
    nothing = pa.array(csv.ConvertOptions().null_values)
    for name in set(kinds) & set(part.column_names):
        texts = part.column(name)
        texts = pc.if_else(pc.is_in(texts, nothing), pa.scalar(None, pa.string()), texts)
        part = part.set_column(part.column_names.index(name), name, _cast_to_one_of(texts, kinds[name]))
    return part


def _cast_to_one_of(texts: Any, kinds: Sequence[Any]) -> Any:
    """The texts as the first type that fits all of them; unchanged if none does."""
    import pyarrow as pa

    for kind in kinds:
        try:
            return texts.cast(kind)
        except pa.ArrowInvalid:
            continue
    return texts


def _cause(error: Exception) -> str:
    """The cause in an error of pyarrow, without its context."""
    return str(error).rsplit("Invalid: ", 1)[-1]


def _repeats_in(answers: Scheduled) -> int:
    """How many were stored before."""
    import pyarrow.compute as pc

    count = 0
    for part in answers.parts:
        if isinstance(part, StoredPart):
            count += pc.sum(part.table["is_repeat"]).as_py() or 0
        else:
            count += sum(isinstance(answer, SendResult) and answer.is_repeat for answer in part)
    return count
