"""How the site is built: `make docs`. Every warning is an error, and nothing is fetched from anywhere.

Reference pages hold a line `<!-- generated: NAME -->`; its place is taken, when the site is built, by what
`reference_pages.py` reads from the code. So they are never out of date, and nothing generated is kept.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from reference_pages import PAGES

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
_MARK = re.compile(r"^<!-- generated: ([a-z-]+) -->$", re.MULTILINE)


def fill(app: Any, name: str, source: list[str]) -> None:
    """Put what the code says in the place of every mark of a page; mere words for links to no page."""
    folder = (_DOCS / name).parent
    filled = _MARK.sub(lambda mark: PAGES[mark[1]](), source[0])
    source[0] = _LINK.sub(lambda link: _kept_inside(link, folder), filled)


def _kept_inside(link: re.Match[str], folder: Path) -> str:
    """A file of the repository outside the site is named, not linked: it is not where the site lies."""
    is_inside = (folder / link[2]).resolve().is_relative_to(_DOCS)
    return link[0] if is_inside else f"{link[1]} (`{link[2].lstrip('./')}`)"


def setup(app: Any) -> None:
    app.connect("source-read", fill)
