"""The documents, as tests: examples run, commands exist, byte tables say what the code says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import tidemill
from acceptance.serving import Served
from tidemill.cli.bench.figures import FIGURES
from tidemill.cli.catalogue import application
from tidemill.core.levels import DEFAULT_LEVELS
from tidemill.log import checkpoint
from tidemill.log.frame import HEADER_BYTES
from tidemill.store.consumers.consumer_state import CHANGE
from tidemill.store.formats.entry_format import ENTRY
from tidemill.store.formats.find_format import PAIR_BYTES, RUN_HEADER_BYTES
from tidemill.store.formats.frames import RELEASE_GROUP, Kind
from tidemill.store.formats.message_format import ROW
from tidemill.store.formats.queue_format import QUEUE_ROW
from tidemill.store.formats.request_format import REQUEST_BYTES
from tidemill.timer import cursor, shard_header
from tidemill.timer.ready_format import READY_HEADER_BYTES
from tidemill.timer.ready_row_format import READY_BYTES
from tidemill.timer.rocksdb.rocks_format import KEY_BYTES, TIMER_KEY
from tidemill.timer.target import TARGET_BYTES
from tidemill.timer.wheel.timer_log_format import UNIT, UNIT_BYTES
from tidemill.timer.wheel.wheel_format import SLOT, SLOT_BYTES

_ROOT = Path(__file__).resolve().parent.parent
_README = (_ROOT / "README.md").read_text()
_FORMATS = (_ROOT / "docs" / "on-disk-formats.md").read_text()
_COMMAND_LINE = (_ROOT / "docs" / "command-line.md").read_text()
_SERVED = "127.0.0.1:8081"  # where the documents say that the broker is


def _commands(command: Any, path: str = "") -> dict[str, Any]:
    """Every command of the command line by its full name, without `tidemill`."""
    found: dict[str, Any] = {}
    for name, child in getattr(command, "commands", {}).items():
        found[f"{path}{name}"] = child
        found |= _commands(child, f"{path}{name} ")
    return found


_APP = application(None)
_COMMANDS = _commands(typer.main.get_command(_APP))


def _blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("readme") / "data", "--pipeline", "embedded", "--auto-create")
    yield served.start()
    served.stop()


@pytest.mark.parametrize("block", _blocks(_README, "python"))
def test_every_example_of_the_readme_runs_against_a_served_broker(
    block: str, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_shortly(worker: tidemill.Worker) -> None:
        worker.start()
        worker.stop()

    monkeypatch.setattr(tidemill.Worker, "run", run_shortly)
    exec(compile(block.replace(_SERVED, served.endpoint), "README.md", "exec"), {})


def test_the_commands_of_the_readme_show_what_they_say(served: Served) -> None:
    (block,) = [block for block in _blocks(_README, "sh") if "tidemill receive" in block]
    printed = {}
    for line in filter(None, block.splitlines()):
        _, *words = shlex.split(line, comments=True)
        if "--watch" not in words:  # runs until Ctrl-C
            result = CliRunner().invoke(_APP, [*words, "--endpoint", served.endpoint])
            assert result.exit_code == 0, result.output
            printed[words[0]] = result.output
    assert "close order 17" in printed["receive"]
    assert "order-17" in printed["pending"]
    assert "fall due" in printed["forecast"]


def test_every_command_named_in_the_readme_exists() -> None:
    named = set(re.findall(r"^tidemill ([a-z]+)", "\n".join(_blocks(_README, "sh")), re.MULTILINE))
    assert named
    assert named <= set(_COMMANDS)


def test_the_command_line_is_documented_and_nothing_else() -> None:
    assert set(re.findall(r"^##+ `tidemill ([a-z-]+(?: [a-z]+)*)", _COMMAND_LINE, re.MULTILINE)) == {
        name for name, command in _COMMANDS.items() if not getattr(command, "commands", None)
    }


@pytest.mark.parametrize(
    "name", [name for name, command in _COMMANDS.items() if not getattr(command, "commands", None)]
)
def test_every_option_is_documented_and_no_other(name: str) -> None:
    section = re.search(rf"^##+ `tidemill {name}(?![a-z]| [a-z]).*?(?=^##|\Z)", _COMMAND_LINE, re.M | re.S)
    assert section, f"command-line.md has no section for {name}"
    spellings = [(*parameter.opts, *parameter.secondary_opts) for parameter in _COMMANDS[name].params]
    options = {spelling for pair in spellings for spelling in pair if spelling.startswith("--")}
    shared = {"--endpoint", "--json"}  # explained once, at the top
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", section[0])) - shared == options - shared - {"--help"}


def test_every_command_that_ends_with_an_answer_has_json() -> None:
    """As the documents say of all; a broker and a play have no answer, `mqadmin` prints RocketMQ's tables."""
    named = {name for name, command in _COMMANDS.items() if not getattr(command, "commands", None)}
    has_json = {name for name in named if "--json" in {o for p in _COMMANDS[name].params for o in p.opts}}
    assert named - has_json == {"serve", "demo", "mqadmin"}


def test_every_make_target_named_in_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (_ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z]+)", _README)) - {"alone"} <= targets


@pytest.mark.parametrize("command", _COMMANDS)
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(_APP, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_every_link_of_the_documents_leads_somewhere() -> None:
    documents = [
        *sorted(_ROOT.glob("*.md")),
        *sorted((_ROOT / "docs").rglob("*.md")),
        *sorted((_ROOT / "examples").glob("*.md")),
        *sorted((_ROOT / "examples").glob("*/*.md")),
    ]
    broken = [
        f"{document.name}: {target}"
        for document in documents
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text())
        if not (document.parent / target).exists()
    ]
    assert not broken


def test_every_figure_is_explained() -> None:
    text = (_ROOT / "docs" / "benchmarks.md").read_text()
    assert not [figure.name for figure in FIGURES if f"`{figure.name}`" not in text]


_SIZES = {
    "frame header": HEADER_BYTES,
    "checkpoint header": checkpoint._HEADER.size,
    "message row": ROW.itemsize,
    "release group": RELEASE_GROUP.itemsize,
    "request": REQUEST_BYTES,
    "entry": ENTRY.itemsize,
    "queue row": QUEUE_ROW.itemsize,
    "find run header": RUN_HEADER_BYTES,
    "find pair": PAIR_BYTES,
    "consumer change": CHANGE.itemsize,
    "timer unit": UNIT_BYTES,
    "wheel slot": SLOT_BYTES,
    "timer key": KEY_BYTES,
    "ready header": READY_HEADER_BYTES,
    "ready row": READY_BYTES,
    "cursor": cursor._FIXED.size,
    "shard header": shard_header._FIELDS.size,
    "target": TARGET_BYTES,
}


@pytest.mark.parametrize("name", _SIZES)
def test_the_documented_size_is_the_size(name: str) -> None:
    found = re.search(rf"\*\*{name}\*\*[^\n]*?(\d+) bytes", _FORMATS)
    assert found, f"on-disk-formats.md does not say how large a {name} is"
    assert int(found[1]) == _SIZES[name]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("message row", ROW),
        ("release group", RELEASE_GROUP),
        ("entry", ENTRY),
        ("queue row", QUEUE_ROW),
        ("consumer change", CHANGE),
        ("timer unit", UNIT),
        ("wheel slot", SLOT),
        ("timer key", TIMER_KEY),
    ],
)
def test_the_documented_fields_are_the_fields(name: str, dtype) -> None:
    section = _FORMATS[_FORMATS.index(f"**{name}**") :]
    rows = re.findall(r"^\| (\d+) \| (\d+) \|", section[: section.find("\n\n", section.find("|---"))], re.M)
    documented = [(int(offset), int(size)) for offset, size in rows]
    fields = [(offset, kind.itemsize) for kind, offset in (entry[:2] for entry in dtype.fields.values())]
    assert documented == fields


def test_every_frame_kind_is_documented() -> None:
    assert not [kind.name for kind in Kind if kind.name.replace("_", "-") not in _FORMATS]


def test_the_levels_in_the_documents_are_those_of_the_code() -> None:
    """Every broker may have a table of its own, so only one page has the default one."""
    pages = {path: path.read_text() for path in (_ROOT / "docs").rglob("*.md")}
    assert f"\n    {DEFAULT_LEVELS}\n" in pages[_ROOT / "docs" / "levels.md"]
    count = len(DEFAULT_LEVELS.split())
    assert not [path for path, text in [*pages.items(), ("README", _README)] if f"1 to {count}" in text]
