"""The map in `docs/reading-the-source.md`: every function, module and file that it names exists."""

from __future__ import annotations

import dataclasses
import importlib
import re
from functools import reduce
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGE = _ROOT / "src" / "tidemill"
_LAYERS = "|".join(sorted(path.parent.name for path in _PACKAGE.glob("*/__init__.py")))
_NAME = re.compile(rf"`((?:{_LAYERS})(?:\.\w+)+(?::[\w.]+)?)`")
_FILE = re.compile(rf"`((?:docs/|tests/|(?:{_LAYERS})/)[\w/.-]*)`")
_STEP = re.compile(r"^\| \d+ \| (.*?) \| ", re.MULTILINE)
_STAGES = ("Send", "Absorb", "Due", "Release", "Receive", "Ack")


def _member(holder: object, name: str) -> object:
    if dataclasses.is_dataclass(holder) and name in {field.name for field in dataclasses.fields(holder)}:
        return None
    return getattr(holder, name)


def _why_not(name: str) -> str:
    """Why a name leads nowhere; empty if it does not."""
    module, _, inside = name.partition(":")
    try:
        start: object = importlib.import_module(f"tidemill.{module}")
        reduce(_member, filter(None, inside.split(".")), start)
    except (ImportError, AttributeError) as error:
        return f"{name}: {error}"
    return ""


def _broken(page: str) -> list[str]:
    found = list(filter(None, map(_why_not, _NAME.findall(page))))
    for file in _FILE.findall(page):
        base = _ROOT if file.startswith(("docs/", "tests/")) else _PACKAGE
        if not (base / file).exists():
            found.append(f"{file}: no such file")
    return found


def _page(name: str) -> str:
    return (_ROOT / "docs" / name).read_text()


def test_every_name_of_the_map_exists() -> None:
    page = _page("reading-the-source.md")
    assert len(_NAME.findall(page)) > 80
    broken = _broken(page)
    assert not broken, "docs/reading-the-source.md:\n" + "\n".join(broken)


def test_every_step_of_the_way_names_a_function() -> None:
    page = _page("reading-the-source.md")
    for stage in _STAGES:
        section = re.search(rf"^## {stage}\n.*?(?=^## )", page, re.MULTILINE | re.DOTALL)
        assert section, f"no section {stage}"
        steps = _STEP.findall(section[0])
        assert len(steps) >= 5, stage
        assert all(":" in _NAME.findall(step)[0] for step in steps), steps


def test_the_architecture_page_shows_every_package_and_no_other() -> None:
    packages = {
        str(path.parent.relative_to(_PACKAGE))
        for path in _PACKAGE.rglob("__init__.py")
        if path.parent != _PACKAGE
    }
    picture = re.search(r"```\n(cli .*?)```", _page("architecture.md"), re.DOTALL)
    assert picture, "no picture of the packages"
    shown = set()
    for layer, inside in re.findall(r"^(\w+) +.*?(?:\[([\w ]+)\])?$", picture[1], re.MULTILINE):
        shown |= {layer, *(f"{layer}/{name}" for name in inside.split())}
    assert shown == {package for package in packages if package.count("/") < 2}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("`log.segments:SegmentedLog.apend`", "has no attribute 'apend'"),
        ("`log.segment_files:SegmentedLog`", "No module named"),
        ("`timer/stage/`", "no such file"),
    ],
)
def test_a_name_that_leads_nowhere_is_reported(text: str, complaint: str) -> None:
    (found,) = _broken(text)
    assert complaint in found
