"""`tidemill salvage DIR --to NEW`: copy what can be read of a damaged data directory, report what is missing.

The broker must be stopped. DIR is only read. Exit 0: nothing is missing; 1: something is; 2: bad usage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tidemill.broker.salvage import MESSAGES_NAME, REPORT_NAME
from tidemill.broker.salvage import salvage as copy_readable
from tidemill.broker.salvage_report import RegionReport, SalvageReport
from tidemill.cli.connecting import JsonOption
from tidemill.cli.data_directory import DirectoryArgument, require_data_directory
from tidemill.cli.output import Answer, bar
from tidemill.core.clock import SystemClock
from tidemill.core.durations import format_time
from tidemill.log.disk import RealDisk

_SHOWN_MAX = 20


def salvage(
    directory: DirectoryArgument,
    target: Annotated[Path, typer.Option("--to", metavar="NEW", help="A new or empty directory.")],
    is_json: JsonOption = False,
) -> int:
    """Copy what can be read of a damaged data directory into a new one; exit 1 if data is missing.

    DIR is only read. NEW is a data directory when this ends; what is missing is in its salvage-report.json.
    """
    require_data_directory(directory)
    with bar("copying the log") as advance:
        report = copy_readable(directory, target, RealDisk(), SystemClock().now_ms(), advance)
    fields = {**asdict(report), "is_whole": report.is_whole}
    return Answer(fields, lambda: lines_of(report), report.is_whole).print(is_json)


def lines_of(report: SalvageReport) -> Iterator[str]:
    """The report in words."""
    for region in report.regions[:_SHOWN_MAX]:
        yield from _region_lines(region)
    if len(report.regions) > _SHOWN_MAX:
        yield f"{len(report.regions) - _SHOWN_MAX} more damaged parts: see {REPORT_NAME}"
    for damage in report.opening_frames:
        yield f"{damage['file']}: the frame that opens the file is damaged; nothing is lost with it"
    if report.unreadable_bytes:
        yield f"{report.unreadable_bytes:,} bytes could not be read from the disk"
    yield from _consumer_lines(report)
    if report.has_new_broker_id:
        yield f"the identity could not be read: the copy is broker {report.broker}, older handles are unknown"
    doubts = {
        "may have been delivered before": report.possibly_released,
        "may have been cancelled": report.possibly_cancelled,
        "may have been rescheduled": report.possibly_moved,
    }
    for what, count in doubts.items():
        if count:
            yield f"{count:,} pending messages {what}: see {MESSAGES_NAME}"
    if report.possibly_ended:
        yield f"{len(report.possibly_ended):,} open transactions may have ended before: see {REPORT_NAME}"
    yield (
        f"{report.directory}: {report.log_bytes:,} bytes of log, {report.pending:,} pending, "
        f"{report.released:,} released, {report.cancelled:,} cancelled; "
        + ("nothing is missing" if report.is_whole else "not all could be read")
    )


def _region_lines(region: RegionReport) -> Iterator[str]:
    for damage in region.ranges:
        state = "is missing" if damage["is_missing"] else "does not read back"
        yield f"{damage['file']}: offset {damage['start']:,} to {damage['end']:,} {state}"
    yield f"  written between {_time(region.time_from_ms)} and {_time(region.time_to_ms)}"
    at_least = "" if region.is_exact else "at least "
    yield (
        f"  lost: {at_least}{region.seq_count:,} timed messages, "
        f"{at_least}{region.queue_row_count:,} places in queues"
    )
    for lost in region.counts:
        yield (
            f"  topic {lost.topic}: {lost.sent:,} messages, {lost.released:,} releases, "
            f"{lost.cancelled:,} cancels"
        )
    for known in region.known_messages:
        yield (
            f"  the old index knows {known['count']:,} of them in topic {known['topic']}, "
            f"due {format_time(known['due_from_ms'])} to {format_time(known['due_to_ms'])}"
        )
    if region.topics:
        yield f"  topics made, changed or deleted there: {', '.join(region.topics)}"


def _time(ms: int | None) -> str:
    return "an unknown time" if ms is None else format_time(ms)


def _consumer_lines(report: SalvageReport) -> Iterator[str]:
    for damage in report.consumer_damages:
        where = f"consumers/{damage['file']}"
        yield (
            f"{where}: offset {damage['start']:,} to {damage['end']:,} does not read back; "
            "acknowledgements in it are lost"
        )
    if report.consumer_checkpoint_lost:
        yield "the consumers' checkpoint is lost: groups begin where their last readable state was"
    if report.unknown_groups:
        yield f"{len(report.unknown_groups)} consumer groups are lost; they restart on their next receive"
