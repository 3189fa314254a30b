"""The names of the package: found by `dir`, found by a type checker, and all there."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import tidemill

_STUB = Path(tidemill.__file__).with_suffix(".pyi")


def test_dir_shows_every_name_before_anybody_has_used_it() -> None:
    program = "import tidemill; print(set(tidemill.__all__) - set(dir(tidemill)))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert said.stdout == "set()\n"


def test_every_name_is_there() -> None:
    assert all(getattr(tidemill, name).__name__ for name in tidemill.__all__)
    assert issubclass(tidemill.Unauthorized, tidemill.RequestError)
    assert issubclass(tidemill.Forbidden, tidemill.RequestError)


def test_a_type_checker_is_told_the_same_names() -> None:
    imported = {
        name.asname
        for part in ast.parse(_STUB.read_text()).body
        if isinstance(part, ast.ImportFrom)
        for name in part.names
    }
    assert imported == set(tidemill.__all__)
