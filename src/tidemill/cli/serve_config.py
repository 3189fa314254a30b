"""The file of `tidemill serve --config`: options of the command by their names, and settings of the broker.

Owns the precedence of the file's values, above the defaults and below the flags: an option's value becomes
the command's default for this run, so that it is checked like a flag, and a given flag wins. Settings of the
broker are passed to `core/config.py`, which checks them.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemill.core.config import BrokerSettings, setting_names, settings_from
from tidemill.core.errors import RequestError

_NOT_IN_A_FILE = {"config", "help"}


def _take_options(context: typer.Context, path: Path | None) -> Path | None:
    """Make the options in a file the defaults of this command."""
    if path is not None:
        content = _content(path)
        options = {str(option.name) for option in context.command.params} - _NOT_IN_A_FILE
        known = options | setting_names()
        if unknown := sorted(set(content) - known):
            names = ", ".join(sorted(known))
            raise RequestError(f"{path}: unknown setting {unknown[0]!r}; known are {names}")
        defaults = {name: value for name, value in content.items() if name in options - setting_names()}
        context.default_map = {**(context.default_map or {}), **defaults}
    return path


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        help="A TOML file with these options and other settings; flags win.",
        callback=_take_options,
        is_eager=True,
    ),
]


def settings_in(path: Path | None) -> BrokerSettings:
    """The broker's settings in the file, which is checked already; the defaults if there is none."""
    if path is None:
        return BrokerSettings()
    return settings_from({name: value for name, value in _content(path).items() if name in setting_names()})


def _content(path: Path) -> dict[str, Any]:
    """The content of the file, with the names of Python."""
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise RequestError(f"cannot read settings from {path}: {why}; name a TOML file") from error
    return {name.replace("-", "_"): value for name, value in content.items()}
