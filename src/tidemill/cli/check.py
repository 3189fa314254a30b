"""`tidemill check DIR`: every invariant of a data directory, findings as text, exit 1 on any.

Opens the directory under its lock with nothing running, so it changes no more than opening does, derives
everything once more from the log in a scratch directory and compares.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tidemill.broker.broker import Broker
from tidemill.cli.connecting import JsonOption
from tidemill.cli.data_directory import DirectoryArgument, open_quietly, require_data_directory, shape_of
from tidemill.cli.output import Answer, bar
from tidemill.core.errors import CorruptionError

_REBUILD = "the log reads back whole, so `tidemill rebuild` can derive all other files again"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of a check. The counts are zero where the directory could not be opened."""

    directory: str
    is_sound: bool
    findings: list[str] = field(default_factory=list)
    log_bytes: int = 0
    pending: int = 0
    released: int = 0
    cancelled: int = 0
    advice: str = ""


def check(
    directory: DirectoryArgument,
    is_json: JsonOption = False,
) -> int:
    """Check every invariant of a data directory; exit 1 on any finding.

    It is opened as a broker would open it: a torn tail is cut, damaged derived files are derived again and
    named.
    """
    report = checked(directory)
    return Answer(asdict(report), lambda: lines_of(report), report.is_sound).print(is_json)


def checked(directory: Path) -> CheckReport:
    """Open and check a directory; bytes that do not read back are a finding, not a failure."""
    require_data_directory(directory)
    try:
        with bar("opening") as advance:
            broker = open_quietly(directory, shape_of(directory), advance)
        with broker:
            return report_on(broker)
    except CorruptionError as error:
        return CheckReport(str(directory), False, [str(error)])


def report_on(broker: Broker, text: str = "reading the log") -> CheckReport:
    """Check the directory of a broker in which nothing runs; `text` stands before the progress bar."""
    status = broker.status()
    with tempfile.TemporaryDirectory(prefix="tidemill-check-") as scratch, bar(text) as moved:

        def advance(done: int, total: int) -> None:
            moved(done, total)
            if done >= total:
                moved.wait("comparing with what is in use")

        findings = broker.check(Path(scratch), advance)
    return CheckReport(
        str(broker.directory),
        not findings,
        findings,
        status.log_bytes,
        status.pending,
        status.released,
        status.cancelled,
        _REBUILD if findings else "",
    )


def lines_of(report: CheckReport) -> Iterator[str]:
    """The findings and a summary."""
    yield from report.findings
    if report.is_sound:
        yield (
            f"{report.directory}: all holds ({report.log_bytes:,} bytes of log, {report.pending:,} pending, "
            f"{report.released:,} released, {report.cancelled:,} cancelled)"
        )
    else:
        count = len(report.findings)
        advice = f"; {report.advice}" if report.advice else ""
        yield f"{report.directory}: {count} finding{'s' if count != 1 else ''}{advice}"
