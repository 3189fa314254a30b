"""What acceptance tests share. Each file says by its own `served` which broker they are about."""

from __future__ import annotations

import pytest

from tidemill.cli import main


@pytest.fixture
def cli(served, capsys, monkeypatch):
    """Runs a command against the broker; gives exit code, stdout, stderr."""
    monkeypatch.setenv("TIDEMILL_ENDPOINT", served.endpoint)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main.run(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return run
