"""The table in `docs/reference/seeds.md`: what it names exists, and a row that names nothing says why."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from tidemill.cli.catalogue import application

_PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "seeds.md"
_ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| (.+) \|$")
_NAME = re.compile(r"`(tidemill\.[\w.]+(?::[\w.]+)?)`")
_OPTION = re.compile(r"`(--[a-z-]+)[^`]*`")
_PAGE_LINK = re.compile(r"\]\((\.\./[^)#]+)")
_REASON = re.compile(r"\*\*None:\*\* \w+")


class _Row(NamedTuple):
    number: int
    text: str
    mechanism: str
    here: str


def _rows(page: str) -> list[_Row]:
    found = (_ROW.match(line) for line in page.splitlines())
    return [_Row(int(row[1]), row[2], row[3], row[4]) for row in found if row]


def _options(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from parameter.opts
    for child in getattr(command, "commands", {}).values():
        yield from _options(child)


def _why_not(name: str) -> str:
    """Why a name leads nowhere; empty if it does not."""
    module, _, inside = name.partition(":")
    try:
        start = importlib.import_module(module)
    except ImportError as error:
        return f"{name}: {error}"
    try:
        reduce(getattr, filter(None, inside.split(".")), start)
    except AttributeError as error:
        return f"{name}: {error}"
    return ""


def _faults(row: _Row, options: set[str]) -> Iterator[str]:
    names = _NAME.findall(row.here)
    yield from filter(None, map(_why_not, names))
    yield from (f"{option}: no such option" for option in _OPTION.findall(row.here) if option not in options)
    pages = _PAGE_LINK.findall(row.here)
    yield from (f"{page}: no such page" for page in pages if not (_PAGE.parent / page).exists())
    if not (names or pages or _OPTION.search(row.here) or _REASON.search(row.here)):
        yield "names no module, option or page, and gives no reason (**None:** …)"


def _broken(page: str) -> list[str]:
    options = set(_options(typer.main.get_command(application(None))))
    texts = set(re.findall(r"^\| ([\w-]+) \| \*", page, re.MULTILINE))
    rows = _rows(page)
    found = [f"row {row.number}: {fault}" for row in rows for fault in _faults(row, options)]
    found += [f"row {row.number}: no text is called {row.text}" for row in rows if row.text not in texts]
    count = len(re.findall(r"^\| \d", page, re.MULTILINE))
    if [row.number for row in rows] != list(range(1, count + 1)):
        found.append("the rows are not numbered 1, 2, 3 …, or one has not four cells")
    return found


def test_every_name_of_the_table_exists() -> None:
    broken = _broken(_PAGE.read_text())
    assert not broken, "docs/reference/seeds.md:\n" + "\n".join(broken)


def test_all_five_texts_have_rows() -> None:
    page = _PAGE.read_text()
    assert {row.text for row in _rows(page)} == {"wheel", "RIP-43", "levels", "uses", "async"}
    assert len(_rows(page)) > 130


@pytest.mark.parametrize(
    ("here", "complaint"),
    [
        ("`tidemill.timer.stages.place:plaice`", "has no attribute 'plaice'"),
        ("`tidemill.timer.wheels:Wheel`", "No module named 'tidemill.timer.wheels'"),
        ("`tidemill.timer.wheel.wheel:Wheel.turn`", "has no attribute 'turn'"),
        ("`--trick`", "no such option"),
        ("[levels](../steps.md)", "no such page"),
        ("done otherwise", "gives no reason"),
        ("**None:**", "gives no reason"),
    ],
)
def test_a_row_that_leads_nowhere_is_named(here: str, complaint: str) -> None:
    page = f"| wheel | *title* | x |\n| 1 | wheel | a mechanism | {here} |\n"
    (found,) = _broken(page)
    assert found.startswith("row 1: ")
    assert complaint in found
