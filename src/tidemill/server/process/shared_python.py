"""Whether this Python has its shared library, `libpython`, which Envoy needs.

Envoy has no Python of its own: pyvoy preloads `libpython` into it and loads the application on top. An
interpreter that is linked statically, such as the one of Debian and Ubuntu, comes without that library; there
it is in a package of its own. The library is looked for in the same places as pyvoy looks in.
"""

from __future__ import annotations

import sys
from pathlib import Path

import find_libpython


def missing_package() -> str | None:
    """The Debian package that has the library; None where the library is there already."""
    for candidate in find_libpython.candidate_paths():
        path = Path(candidate)
        if path.name.startswith("libpython") and path.exists():
            return None
    return f"libpython{sys.version_info.major}.{sys.version_info.minor}"
