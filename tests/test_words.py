"""Error texts, log lines, docstrings, comments and help keep to the words of the field.

Owns the phrases (fifteen at most) and the list of what is clean; whatever is cleaned next is added to it.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parent.parent
_SOURCE = _ROOT / "src" / "tidemill"

# The phrase, as a pattern, and what to say instead.
_PHRASES = {
    "whoever": "the subject: the caller, the holder, the runner",
    "nobody": "no caller, no process, none; or: is not known",
    "somebody": "the subject: a caller, another process",
    "anybody": "the subject: any caller, any process",
    "everybody": "the subject: all callers, all threads",
    "told": "reported, refused, distinguished",
    "doors?": "endpoint",
    "floors?": "layer",
    "rooms?": "module; space",
    "mend(ed|s)?": "fix",
    "shortly": "retry later",
    "breath": "pacing",
    "sceptic": "check",
    "middle value": "median",
    "turn(s|ed|ing)? the wheel": "run the timer; timer runner",
}
_BANNED = re.compile(rf"\b({'|'.join(_PHRASES)})\b", re.IGNORECASE)

# Packages of `src/tidemill` and pages of `docs` that are clean.
_PACKAGES = ("core", "log", "store", "timer", "release", "broker", "pipeline", "server", "spark", "testing")
_PAGES = (
    "index.md",
    "start.md",
    "architecture.md",
    "durability.md",
    "reading-the-source.md",
    "concepts/flow.md",
    "concepts/ledger.md",
    "concepts/wheel.md",
    "operations/health.md",
    "operations/retention.md",
    "operations/salvage.md",
    "operations/upgrade.md",
    "reference/errors.md",
    "reference/settings.md",
)


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Texts with a blank, docstrings among them, and comments; with their lines."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _found(path: Path, texts: Iterator[tuple[int, str]]) -> list[str]:
    return [
        f"{path.relative_to(_ROOT)}:{line}: {match[0]!r} in {' '.join(text.split())[:90]!r}"
        for line, text in texts
        for match in _BANNED.finditer(text)
    ]


def test_few_phrases_are_banned() -> None:
    assert len(_PHRASES) <= 15


@pytest.mark.parametrize("package", _PACKAGES)
def test_a_package_speaks_plainly(package: str) -> None:
    paths = sorted((_SOURCE / package).rglob("*.py"))
    assert paths
    found = [line for path in paths for line in _found(path, _texts(path))]
    assert not found, "\n".join([*found, f"instead: {_PHRASES}"])


@pytest.mark.parametrize("page", _PAGES)
def test_a_page_speaks_plainly(page: str) -> None:
    path = _ROOT / "docs" / page
    found = _found(path, iter(enumerate(path.read_text().splitlines(), 1)))
    assert not found, "\n".join([*found, f"instead: {_PHRASES}"])


def test_a_banned_phrase_is_found_wherever_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('"""Nobody reads."""\n# a door\nraise ValueError(f"{1} bytes: no room")\nx = "room"\n')
    found = [match[0].lower() for _, text in _texts(path) for match in _BANNED.finditer(text)]
    assert sorted(found) == ["door", "nobody", "room"]
