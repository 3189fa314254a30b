"""Names that are imported at first use, so that importing the package stays quick."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """A module `__getattr__` that finds each name in its place, written `module:name`."""

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, inner = places[name].partition(":")
        return getattr(import_module(module), inner)

    return find


def lazy_dir(package: str, names: Sequence[str]) -> Callable[[], list[str]]:
    """A module `__dir__` that also shows the names not imported yet."""
    return lambda: sorted({*vars(sys.modules[package]), *names})
