"""The reference, read from the code: commands, settings, errors, metrics, HTTP.

Owns what stands between the marks `<!-- generated: NAME -->` and `<!-- end -->` of `docs/reference/*.md`.
`make reference` runs it to write them again; `tests/test_reference.py` fails while one is not current.
"""

from __future__ import annotations

import inspect
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import typer

from tidemill.broker.broker import Broker
from tidemill.cli.catalogue import application
from tidemill.core import errors
from tidemill.core.config import BrokerSettings
from tidemill.core.durations import format_duration
from tidemill.core.errors import TidemillError
from tidemill.server.grpc.protocol import Code
from tidemill.server.grpc.status_codes import _CODES
from tidemill.server.http.http_api import http_api
from tidemill.server.http.http_errors import status_of
from tidemill.server.long_poll import LongPolls
from tidemill.server.metrics import registry_of


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# -- the command line -----------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, Any]]:
    """Every command by its full name."""
    yield from _below(typer.main.get_command(application(None)), "tidemill")


def _below(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if not children:
        yield path, command
        return
    for name, child in children.items():
        yield from _below(child, f"{path} {name}")


def cli_page() -> str:
    parts = []
    for name, command in commands():
        arguments = [p.metavar or p.name.upper() for p in command.params if p.param_type_name == "argument"]
        usage = " ".join([name, *arguments])
        parts.append(f"## `{usage}`\n\n{(command.help or '').strip()}")
        options = [_option(p) for p in command.params if p.param_type_name == "option" and not p.hidden]
        if options:
            parts.append(_table(("option", "default", ""), options))
    return "\n\n".join(parts)


def _option(parameter: Any) -> tuple[str, str, str]:
    spellings = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    text = parameter.help or ""
    said = re.search(r"\s*\[([^\]]+)\]\s*$", text)  # a default that depends is said in the help
    default = parameter.default
    shown = said[1] if said else "" if default in (None, False, ()) or callable(default) else str(default)
    return spellings, f"`{shown}`" if shown else "", text[: said.start()] if said else text


# -- settings -------------------------------------------------------------------------------------


def settings_page() -> str:
    comments = dict(re.findall(r"^    (\w+): .*?#\s*(.+)$", inspect.getsource(BrokerSettings), re.MULTILINE))
    rows = []
    for field in fields(BrokerSettings):
        value = field.default
        is_duration = field.name.endswith("_ms")
        name = field.name.removesuffix("_ms")
        shown = format_duration(int(value)) if is_duration else str(value)  # type: ignore[call-overload]
        rows.append((f"`{name}`", f"`{shown}`" if shown else "", comments.get(field.name, "")))
    return _table(("setting", "default", ""), rows)


# -- errors ---------------------------------------------------------------------------------------


def errors_page() -> str:
    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, TidemillError) and kind not in (TidemillError, errors.UnreachableError)
    ]
    rows = [
        (
            f"`{kind.code}`",
            f"`{kind.__name__}`",
            _family(kind),
            str(status_of(kind("x"))),
            f"`{Code.Name(_CODES.get(kind.code, Code.INTERNAL_SERVER_ERROR))}`",
            _first_line(kind),
        )
        for kind in sorted(kinds, key=lambda kind: (_family(kind), kind.code))
    ]
    return _table(("code", "Python", "who acts", "HTTP", "gRPC", ""), rows)


_FAMILIES = (
    (errors.RequestError, "the caller"),
    (errors.BusyError, "the caller: retry later"),
    (TidemillError, "the operator"),
)


def _family(kind: type[TidemillError]) -> str:
    return next(who for family, who in _FAMILIES if issubclass(kind, family))


def _first_line(kind: type[TidemillError]) -> str:
    own = kind.__doc__ if "__doc__" in vars(kind) else None
    return (own or "").strip().split("\n")[0]


# -- metrics --------------------------------------------------------------------------------------


def _with_broker(draw: Callable[[Broker], str]) -> str:
    with tempfile.TemporaryDirectory() as place, Broker(Path(place) / "data", has_threads=False) as broker:
        return draw(broker)


def metrics_page() -> str:
    return _with_broker(lambda broker: _table(("metric", "kind", "labels", ""), _metrics(broker)))


def _metrics(broker: Broker) -> Iterator[tuple[str, str, str, str]]:
    gateway: Any = SimpleNamespace(call_counts={}, calls_under_way=0, sessions=())
    suffixes = {"counter": "_total", "info": "_info"}
    for metric in registry_of(broker, gateway).collect():
        if metric.name.startswith("process_"):
            continue  # documented by Prometheus itself
        labels = getattr(metric, "_labelnames", None) or sorted(
            {name for sample in metric.samples for name in sample.labels} - {"le"}
        )
        names = ", ".join(f"`{name}`" for name in labels)
        kind = "gauge" if metric.type == "info" else metric.type
        yield f"`{metric.name}{suffixes.get(metric.type, '')}`", kind, names, metric.documentation


# -- HTTP -----------------------------------------------------------------------------------------


def http_page() -> str:
    return _with_broker(lambda broker: _http(http_api(broker, _polls(broker)).openapi()))


def _polls(broker: Broker) -> LongPolls:
    return LongPolls(broker.store.notifier, broker.receiver.has_news)


def _http(spec: dict[str, Any]) -> str:
    by_tag: dict[str, list[tuple[str, str, str]]] = {}
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            given = [p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"]
            takes = ", ".join(f"`{name}`" for name in given or _body_fields(spec, operation))
            text = operation.get("description") or operation.get("summary", "")
            row = (f"`{method.upper()} {path}`", takes, text)
            by_tag.setdefault(operation.get("tags", ["other"])[0], []).append(row)
    return "\n\n".join(
        f"## {tag.capitalize()}\n\n{_table(('', 'takes', ''), rows)}" for tag, rows in by_tag.items()
    )


def _body_fields(spec: dict[str, Any], operation: dict[str, Any]) -> list[str]:
    content = operation.get("requestBody", {}).get("content", {})
    reference = content.get("application/json", {}).get("schema", {}).get("$ref", "")
    return list(spec["components"]["schemas"].get(reference.rsplit("/", 1)[-1], {}).get("properties", ()))


PAGES: dict[str, Callable[[], str]] = {
    "cli": cli_page,
    "settings": settings_page,
    "errors": errors_page,
    "metrics": metrics_page,
    "http": http_page,
}

_FOLDER = Path(__file__).resolve().parent / "reference"
_BLOCK = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def current(page: str) -> str:
    """A page with the text between its marks made again from the code."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{PAGES[block[2]]()}\n\n{block[3]}", page)


def generated_pages() -> list[Path]:
    return [path for path in sorted(_FOLDER.glob("*.md")) if _BLOCK.search(path.read_text())]


if __name__ == "__main__":
    for path in generated_pages():
        path.write_text(current(path.read_text()))
