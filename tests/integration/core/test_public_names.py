"""The names of the package: found by `dir`, found by a type checker, and all there."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import tidemill
from tidemill.core import errors

_STUB = Path(tidemill.__file__).with_suffix(".pyi")


def test_dir_shows_every_name_before_anybody_has_used_it() -> None:
    program = "import tidemill; print(set(tidemill.__all__) - set(dir(tidemill)))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert said.stdout == "set()\n"


def test_every_name_is_there() -> None:
    assert all(getattr(tidemill, name).__name__ for name in tidemill.__all__)


def test_every_error_is_exported_and_is_a_tidemill_error() -> None:
    kinds = {
        name for name, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)
    }
    assert set(errors.__all__) == kinds
    assert all(name.endswith("Error") for name in kinds)
    assert all(issubclass(getattr(tidemill, name), tidemill.TidemillError) for name in kinds)
    assert issubclass(tidemill.UnauthorizedError, tidemill.RequestError)
    assert issubclass(tidemill.ForbiddenError, tidemill.RequestError)


def test_a_type_checker_sees_the_same_names() -> None:
    imported = {
        name.asname
        for part in ast.parse(_STUB.read_text()).body
        if isinstance(part, ast.ImportFrom)
        for name in part.names
    }
    assert imported - {None, "errors"} | set(errors.__all__) == set(tidemill.__all__)
