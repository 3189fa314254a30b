"""Error texts, log lines, docstrings, comments, help and documents keep to the words of the field.

Owns the phrases (fifteen at most) and what is read: texts, docstrings and comments of Python, all lines of
other files.
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

# The phrase, as a pattern, and what to say instead.
_PHRASES = {
    "whoever": "the subject: the caller, the holder, the runner",
    "nobody": "no caller, no process, none; or: is not known",
    "somebody": "the subject: a caller, another process",
    "anybody": "the subject: any caller, any process",
    "everybody": "the subject: all callers, all threads",
    "told": "reported, refused, distinguished",
    "doors?": "endpoint",
    "(?<!Math\\.)floors?": "layer",
    "rooms?": "module; space",
    "mend(ed|s)?": "fix",
    "shortly": "retry later",
    "breath": "pacing",
    "sceptic": "check",
    "middle value": "median",
    "turn(s|ed|ing)? the wheel": "run the timer; timer runner",
}
_BANNED = re.compile(rf"\b({'|'.join(_PHRASES)})\b", re.IGNORECASE)

_DIRECTORIES = ("src", "benchmarks", "docs", "examples", "scripts", "tests")

# Documents and what else people read.
_DOCUMENTS = (
    "*.md",
    "Makefile",
    "docs/**/*.md",
    "docs/drawings/*.svg",
    "examples/**/*.md",
    "benchmarks/*.md",
)
_FILES = ("deploy/**/*", "scripts/*.sh", "src/tidemill/server/web/*.*", "src/tidemill/server/web/pages/*.js")


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Texts with a blank, docstrings among them, and comments; with their lines."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    return iter(enumerate(path.read_text().splitlines(), 1))


def _found(path: Path, texts: Iterator[tuple[int, str]]) -> list[str]:
    return [
        f"{path.relative_to(_ROOT)}:{line}: {match[0]!r} in {' '.join(text.split())[:90]!r}"
        for line, text in texts
        for match in _BANNED.finditer(text)
    ]


def _files(directory: Path, pattern: str) -> list[Path]:
    paths = (path for path in directory.glob(pattern) if path.is_file() and path != Path(__file__))
    return sorted(path for path in paths if "node_modules" not in path.parts)


def test_few_phrases_are_banned() -> None:
    assert len(_PHRASES) <= 15


@pytest.mark.parametrize("directory", _DIRECTORIES)
def test_python_speaks_plainly(directory: str) -> None:
    paths = _files(_ROOT / directory, "**/*.py")
    assert paths
    found = [line for path in paths for line in _found(path, _texts(path))]
    assert not found, "\n".join([*found, f"instead: {_PHRASES}"])


@pytest.mark.parametrize("pattern", [*_DOCUMENTS, *_FILES])
def test_documents_speak_plainly(pattern: str) -> None:
    paths = _files(_ROOT, pattern)
    assert paths
    found = [line for path in paths for line in _found(path, _lines(path))]
    assert not found, "\n".join([*found, f"instead: {_PHRASES}"])


def test_a_banned_phrase_is_found_wherever_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('"""Nobody reads."""\n# a door\nraise ValueError(f"{1} bytes: no room")\nx = "room"\n')
    found = [match[0].lower() for _, text in _texts(path) for match in _BANNED.finditer(text)]
    assert sorted(found) == ["door", "nobody", "room"]
