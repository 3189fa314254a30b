"""Interpreters that a worker must not run: real ones, in disguise."""

from __future__ import annotations

import sys
from pathlib import Path

OWN_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def other_python(directory: Path) -> Path:
    """A Python that takes itself for version 3.99."""
    disguise = directory / "disguise"
    disguise.mkdir()
    (disguise / "sitecustomize.py").write_text(
        "import sys\nsys.version_info = (3, 99, *tuple(sys.version_info)[2:])\n"
    )
    return wrapped_python(directory, f'PYTHONPATH="{disguise}:$PYTHONPATH" exec {sys.executable} "$@"')


def bare_python(directory: Path) -> Path:
    """A Python without any package."""
    return wrapped_python(directory, f'exec {sys.executable} -I -S "$@"')


def wrapped_python(directory: Path, command: str) -> Path:
    python = directory / "python"
    python.write_text(f"#!/bin/sh\n{command}\n")
    python.chmod(0o755)
    return python
