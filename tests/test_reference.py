"""The generated pages of `docs/reference` are in the repository and say what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

_DOCS = Path(__file__).resolve().parent.parent / "docs"


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_pages", _DOCS / "reference_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_PAGES = _loaded()


@pytest.mark.parametrize("path", _PAGES.generated_pages(), ids=lambda path: path.stem)
def test_a_reference_page_is_current(path: Path) -> None:
    page = path.read_text()
    assert _PAGES.current(page) == page, f"{path.name} is not current: run `make reference`"
    assert page.count("\n| ") > 10, f"{path.name} has no rows"


def test_every_kind_of_page_is_there() -> None:
    assert {path.stem for path in _PAGES.generated_pages()} == set(_PAGES.PAGES)
