"""The command `tidemill`: one application, one file per command, one place that prints errors.

Owns the exit codes and the form of a failure: one line on stderr that says what to do, exit code 1 (2 for bad
usage, which includes impossible values; 130 when interrupted), never a traceback for an error raised on
purpose.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from tidemill.cli.catalogue import application
from tidemill.core.errors import (
    AlreadyReleasedError,
    ForbiddenError,
    InvalidAckTokenError,
    RequestError,
    TidemillError,
    TopicExistsError,
    TopicInUseError,
    UnauthorizedError,
    UnknownMessageError,
    UnknownTopicError,
    UnknownTransactionError,
)

_FAILED = 1
_BAD_USAGE = 2
_INTERRUPTED = 130
# Typer may bring its own copy of click, so the family of usage errors is taken from Typer itself.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

# The request was valid but did not fit the state of the broker: a failure. Others are bad usage.
_NOT_POSSIBLE_NOW = (
    UnknownTopicError,
    TopicExistsError,
    TopicInUseError,
    UnknownMessageError,
    AlreadyReleasedError,
    UnknownTransactionError,
    InvalidAckTokenError,
    UnauthorizedError,
    ForbiddenError,
)

_SERVE = "serve"
_MISSING = "Missing command"  # only a group of commands was named
_COMPLETING = "_TIDEMILL_COMPLETE"
_LINES = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")


def main() -> None:
    """Run the command line and exit with its code."""
    if sys.stdout is None:
        _do_without_stdout(_wanted(sys.argv[1:]))
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
    except OSError as error:  # a full disk, a stdout that is open for reading only
        _drop_stdout()
        if code == 0:  # else the error is printed already
            code = _complain(f"standard output cannot be written: {error.strerror or error}", _FAILED)
    sys.exit(code)


def run(arguments: Sequence[str], app: typer.Typer | None = None, name: str = "tidemill") -> int:
    """Run one command line; returns its exit code. `app` has other commands than those of `tidemill`."""
    try:
        app = app or application(_wanted(arguments))
        code = app(args=list(arguments) or ["--help"], prog_name=name, standalone_mode=False)
    except _UsageError as error:
        return _complain(_usage_text(error), _BAD_USAGE)
    except TidemillError as error:
        is_bad_usage = isinstance(error, RequestError) and not isinstance(error, _NOT_POSSIBLE_NOW)
        return _complain(str(error), _BAD_USAGE if is_bad_usage else _FAILED)
    except BrokenPipeError:  # as in `tidemill dump FILE | head`
        _drop_stdout()
        return 0
    except SystemExit as stop:  # the same, where click caught it first
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
        _drop_stdout()
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _complain(f"{where}{error.strerror or error}; check the path and its permissions", _FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", _INTERRUPTED)
    return code if isinstance(code, int) else 0


def _wanted(arguments: Sequence[str]) -> str:
    """The command that is named, also in the line of a shell that asks for completions."""
    words = _line_to_complete()[1:] if _COMPLETING in os.environ else arguments
    return next((word for word in words if not word.startswith("-")), "")


def _line_to_complete() -> list[str]:
    """The shell's line so far; bash names the variable differently than zsh, fish and PowerShell."""
    return next((os.environ[name].split() for name in _LINES if name in os.environ), [])


def _usage_text(error: Exception) -> str:
    format_message = getattr(error, "format_message", lambda: str(error))
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "tidemill"
    said = _wrong_value(error) or format_message().rstrip(".") or _MISSING
    if said == _MISSING and (names := getattr(getattr(context, "command", None), "commands", None)):
        said = f"{said}, one of {', '.join(names)}"
    return f"{said}; see `{command} --help`"


def _wrong_value(error: Exception) -> str:
    """The text for a value that is not possible; nothing for another error."""
    parameter = getattr(error, "param", None)
    if type(error) is not typer.BadParameter:
        return ""
    if parameter is None:
        return error.message
    is_argument = parameter.param_type_name == "argument"
    name = parameter.metavar or parameter.name if is_argument else max(parameter.opts, key=len)
    details: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    if not details:
        return f"{name}: {error.message.rstrip('.')}"
    # The parser's message leaves out the value.
    kinds = {"int_parsing": "use a whole number", "float_parsing": "use a number"}
    needed = details[0]["msg"].replace("Input should", "it should").removeprefix("Value error, ").rstrip(".")
    return f"{name} {details[0]['input']!r} is not possible; {kinds.get(details[0]['type'], needed)}"


def _complain(text: str, code: int) -> int:
    print(f"tidemill: {' '.join(text.split())}", file=sys.stderr)
    return code


def _do_without_stdout(command: str) -> None:
    """Standard output was closed at the start: `serve` runs without it, any other command refuses.

    Its output would be lost, and messages that were not printed must not count as delivered.
    """
    if command != _SERVE:
        sys.exit(_complain("standard output is closed; send it to a file, or to /dev/null", _FAILED))
    # Else a file of the broker could get descriptor 1, which its children use for output.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process


def _drop_stdout() -> None:
    """The reader has closed the pipe: discard what is buffered instead of failing at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
