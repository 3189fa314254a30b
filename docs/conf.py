"""How the site is built: `make docs`. Every warning is an error, and nothing is fetched from anywhere.

The tables of the reference pages are in the repository; `make reference` writes them from the code.
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from typing import Any

project = "Tidemill"
author = "The Tidemill authors"
release = metadata.version("tidemill")
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns: list[str] = []
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "attrs_block"]
html_theme = "furo"
html_title = f"Tidemill {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6e8f", "color-brand-content": "#0b6e8f"},
    "dark_css_variables": {"color-brand-primary": "#5cc8e8", "color-brand-content": "#5cc8e8"},
}

_DOCS = Path(__file__).parent.resolve()
_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)\)")


def name_outside_files(app: Any, name: str, source: list[str]) -> None:
    """Links to files that are no page of the site become their names."""
    folder = (_DOCS / name).parent
    source[0] = _LINK.sub(lambda link: _kept_inside(link, folder), source[0])


def _kept_inside(link: re.Match[str], folder: Path) -> str:
    """A file of the repository outside the site is named, not linked: it is not where the site lies."""
    is_inside = (folder / link[2]).resolve().is_relative_to(_DOCS)
    return link[0] if is_inside else f"{link[1]} (`{link[2].lstrip('./')}`)"


def setup(app: Any) -> None:
    app.connect("source-read", name_outside_files)
