"""`tidemill damaged [DIR]`: messages whose bytes in the commit log are damaged.

Without DIR the running broker lists what it has found since it started. With DIR the whole log of a data
directory that no process has open is verified.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

from tidemill.broker.query.damage_views import damage_views
from tidemill.cli.arguments import usage
from tidemill.cli.connecting import EndpointOption, JsonOption, connect
from tidemill.cli.data_directory import open_quietly, require_data_directory, shape_of
from tidemill.cli.output import Answer, bar, table
from tidemill.core.answers import DamagedMessage
from tidemill.core.durations import format_time
from tidemill.store.upkeep.log_scrub import LogScrub

_LIMIT_MAX = 10_000


def damaged(
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="A data directory that no process has open.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=_LIMIT_MAX, help="At most this many.")] = 100,
    has_bytes: Annotated[
        bool, typer.Option("--bytes", help="With DIR: the bytes of each frame in base64, as `frame_base64`.")
    ] = False,
    endpoint: EndpointOption = None,
    is_json: JsonOption = False,
) -> int:
    """List messages whose bytes in the log are damaged; exit 1 if there are any."""
    if directory is None:
        if has_bytes:
            raise usage("--bytes reads the files: name the directory, with its broker stopped")
        with connect(endpoint) as client:
            return _answer(client.admin.damaged(limit=limit), {}).print(is_json)
    if endpoint is not None:
        raise usage("give either a directory or --endpoint")
    require_data_directory(directory)
    with bar("opening") as advance:
        broker = open_quietly(directory, shape_of(directory), advance)
    with broker:
        with bar("verifying the log"):
            LogScrub(broker.store).run()
        found = damage_views(broker.store, broker.id, limit)
        log = broker.store.log
        offsets = {one.log_offset for one in found} if has_bytes else set()
        frames = {offset: log.damaged_bytes(offset) for offset in offsets}
        return _answer(found, frames).print(is_json or has_bytes)


def _answer(found: Sequence[DamagedMessage], frames: dict[int, bytes]) -> Answer:
    fields = [asdict(one) | {"handle": None if one.handle is None else str(one.handle)} for one in found]
    for one in fields:
        if one["log_offset"] in frames:
            one["frame_base64"] = base64.b64encode(frames[one["log_offset"]]).decode()
    return Answer(fields, lambda: _shown(found), not found)


def _shown(found: Sequence[DamagedMessage]) -> Iterator[RenderableType]:
    if not found:
        yield "no message with damaged bytes is known"
        return
    yield table("state,topic,>queue,>offset,>seq,due,file,>byte", (_row(one) for one in found))
    yield "they are not delivered; see handles and all that is known with --json"


def _row(one: DamagedMessage) -> tuple[str, ...]:
    numbers = ("" if number is None else str(number) for number in (one.queue, one.offset, one.seq))
    due = "" if one.deliver_at_ms is None else format_time(one.deliver_at_ms)
    return (one.state, one.topic, *numbers, due, Path(one.file).name, str(one.position))
