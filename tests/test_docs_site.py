"""The site, as tests: it builds without a warning, its samples print what they say, its commands exist."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

import tidemill
from acceptance.serving import Served, wait_until
from tidemill.cli.catalogue import application
from tidemill.core.config import BrokerSettings
from tidemill.core.errors import TidemillError

_ROOT = Path(__file__).resolve().parent.parent
_DOCS = _ROOT / "docs"
_SERVED = "127.0.0.1:8081"
_PAGES = [
    *(_DOCS / name for name in ("start.md", "clients.md")),
    *sorted(_DOCS.glob("concepts/*.md")),
    *sorted(_DOCS.glob("how-to/*.md")),
]
# Quotes an example that needs a database; tests/acceptance/test_polled_table.py runs it.
_PAGES.remove(_DOCS / "how-to" / "from-a-polled-table.md")
# A sample, and behind it the lines that it must print.
_SAMPLE = re.compile(r"```python\n(.*?)```\n((?:\s*<!-- prints: .*? -->\n?)*)", re.DOTALL)
_PRINTS = re.compile(r"<!-- prints: (.*?) -->")


def _samples() -> Iterator[Any]:
    for page in _PAGES:
        for number, (block, marks) in enumerate(_SAMPLE.findall(page.read_text())):
            yield pytest.param(block, _PRINTS.findall(marks), id=f"{page.stem}-{number}")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("site") / "data"
    served = Served(directory, "--pipeline", "embedded", "--auto-create", "--flight-port", "0")
    yield served.start()
    served.stop()


@pytest.mark.parametrize(("block", "prints"), list(_samples()))
def test_every_sample_runs_and_prints_what_it_says(
    block: str, prints: list[str], served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "pyspark" in block:
        found = subprocess.run([_ROOT / "scripts" / "need_java.sh"], capture_output=True, text=True)
        if found.returncode:
            pytest.skip("Spark needs Java 17, which is not here and cannot be installed")
        monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    said = io.StringIO()

    def run_until_printed(worker: tidemill.Worker) -> None:
        worker.start()
        wait_until(lambda: all(line in said.getvalue() for line in prints), f"{prints} printed")
        worker.stop()

    monkeypatch.setattr(tidemill.Worker, "run", run_until_printed)
    assert prints, "say what the sample prints"
    with contextlib.redirect_stdout(said):
        exec(compile(block.replace(_SERVED, served.endpoint), "sample", "exec"), {"__name__": "sample"})
    assert [line for line in prints if line in said.getvalue()] == prints, said.getvalue()
    assert threading.active_count() < 100


def _shell_lines() -> Iterator[Any]:
    for page in sorted(_DOCS.rglob("*.md")):
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.splitlines():
                if command := re.match(r"(?:\.venv/bin/)?(tidemill .*)", line):
                    yield pytest.param(command[1], id=f"{page.stem}: {command[1][:60]}")


@pytest.mark.parametrize("line", list(_shell_lines()))
def test_every_command_of_the_site_is_taken(line: str) -> None:
    command: Any = typer.main.get_command(application(None))
    _, *words = shlex.split(line, comments=True)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context(command.name, words)  # raises on an option that does not exist


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a link that leads nowhere, a page that no list has, any other warning fails."""
    place = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(place)]
    said = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    return place


def test_the_site_asks_no_other_host_for_anything(site: Path) -> None:
    asked = [
        f"{page.name}: {tag}"
        for page in site.rglob("*.html")
        for tag in re.findall(r"<(?:script|img|link|iframe)\b[^>]*>", page.read_text())
        if re.search(r"""(?:src|href)=["'](?:https?:)?//""", tag)
    ]
    assert not asked


def test_the_reference_holds_what_the_code_has(site: Path) -> None:
    def page(name: str) -> str:
        return re.sub(r"<[^>]+>", "", (site / "reference" / f"{name}.html").read_text())

    settings = page("settings")
    assert not [f.name for f in fields(BrokerSettings) if f.name.removesuffix("_ms") not in settings]
    codes = {kind.code for kind in _below(TidemillError) if kind.__module__ == "tidemill.core.errors"}
    assert not [code for code in codes if code not in page("errors")]
    assert "tidemill_release_lateness_seconds" in page("metrics")
    assert "tidemill_grpc_calls_total" in page("metrics")
    assert "POST /v1/cancel" in page("http")
    assert "tidemill status" in page("cli")
    assert "--watch" in page("cli")


def _below(kind: type[TidemillError]) -> Iterator[type[TidemillError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)


def test_every_metric_of_the_monitoring_page_is_in_the_reference(site: Path) -> None:
    named = set(re.findall(r"`(tidemill_\w+)`", (_DOCS / "operations" / "monitoring.md").read_text()))
    assert len(named) > 15
    reference = (site / "reference" / "metrics.html").read_text()
    assert not [name for name in named if name not in reference]
