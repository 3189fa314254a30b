"""The list of commands: true to the commands it names, quick to load, and known to a shell."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tidemill.cli.catalogue import CATALOGUE, loaded
from tidemill.cli.main import run

_COMMAND = Path(sys.executable).with_name("tidemill")
# What takes long to load, and what only the broker needs.
_HEAVY = ("numpy", "pyarrow", "pandas", "fastapi", "tidemill.broker.broker", "tidemill.server.app")
_LOADED = """
import json, sys
from tidemill.cli.main import run
run(sys.argv[1:])
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_help_says_what_the_command_says(name: str) -> None:
    command = loaded(name)
    text = command.info.help if isinstance(command, typer.Typer) else inspect.getdoc(command)
    assert " ".join(text.split("\n\n")[0].split()) == CATALOGUE[name]


@pytest.mark.parametrize(
    "arguments", [["--help"], ["nonsense"], ["send", "--help"], ["status", "--help"], ["topics", "--help"]]
)
def test_what_only_talks_to_a_broker_does_not_load_one(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOADED, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    modules = json.loads(done.stderr.splitlines()[-1])
    assert not set(_HEAVY) & set(modules)


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("topics", "list, create, delete, pause, resume, limit"),
        ("groups", "list, set, reset"),
        ("dead-letters", "list, resend"),
        ("dlq", "list, resend"),
        ("bench", "engine, server, pipeline, levels"),
    ],
)
def test_a_family_without_its_command_says_what_is_missing_and_nothing_else(
    family: str, names: str, capsys
) -> None:
    assert run([family]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"tidemill: Missing command, one of {names}; see `tidemill {family} --help`\n"


def test_help_lists_every_command() -> None:
    done = subprocess.run([_COMMAND, "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert all(f" {name} " in done.stdout for name in CATALOGUE)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("tidemill se", {"serve", "send"}),
        ("tidemill send --de", {"--delay"}),
        ("tidemill topics cr", {"create"}),
        ("tidemill cancel orders --k", {"--key"}),
        ("tidemill dlq re", {"resend"}),
    ],
)
def test_bash_completes_commands_and_options(line: str, offered: set[str]) -> None:
    # Asked by a bash: the script is for the shell that asks, and what runs the tests may be another or none.
    shown = ["bash", "-c", f"{_COMMAND} --show-completion; exit $?"]
    script = subprocess.run(shown, capture_output=True, text=True, timeout=60, check=True).stdout
    words = line.split()
    asked = (
        f"{script}\nCOMP_WORDS=({line})\nCOMP_CWORD={len(words) - 1}\n"
        f"_tidemill_completion {_COMMAND}\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=60, check=True)
    assert set(done.stdout.split()) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish", "powershell"])
@pytest.mark.parametrize(
    ("line", "offered"),
    [("tidemill send --de", "--delay"), ("tidemill topics cr", "create"), ("tidemill se", "serve")],
)
def test_other_shells_complete_commands_and_options(shell: str, line: str, offered: str) -> None:
    asked = {
        "_TIDEMILL_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_WORD_TO_COMPLETE": line.split()[-1],
    }
    done = subprocess.run([_COMMAND], capture_output=True, text=True, timeout=60, env=os.environ | asked)
    assert offered in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["serve", "--wheel-slots", "abc"], "--wheel-slots 'abc' is not possible; use a whole number"),
        (
            ["serve", "--data", "never-made", "--roll-window", "1y"],
            "roll-window is not a duration: '1y'; write it",
        ),
        (["send", "topic", "body", "--level", "1.5"], "--level '1.5' is not possible; use a whole number"),
    ],
)
def test_a_text_in_place_of_a_number_is_named(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1
