"""Keeps pandas out of the broker process and of the pipeline's workers.

pyarrow looks for pandas the first time that an array is made from a Python list, to know its types when it
meets them. We never meet one, and the import takes hundreds of milliseconds with the interpreter locked: at
the start it delays every caller, later it makes timers late; and it takes tens of megabytes in each
process. pyarrow looks once, so it is made to look while pandas is not to be found. Only for a process of our
own: in a user's program pandas is theirs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa

_NAME = "pandas"


class _NotToBeFound:
    """A module finder that refuses pandas."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == _NAME:
            raise ModuleNotFoundError(f"{_NAME} is kept out", name=name)
        return None


def keep_pandas_out() -> None:
    """Let pyarrow look for pandas now, in vain. Nothing to do if it is loaded already."""
    if _NAME in sys.modules:
        return
    finder = _NotToBeFound()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([""])
    finally:
        sys.meta_path.remove(finder)
