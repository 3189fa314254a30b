"""Programs of their own: `tidemill sql`, and the example with the reminders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from acceptance.command_line import run

_ROOT = Path(__file__).resolve().parents[2]


def test_the_command_answers_a_query(served, client) -> None:
    client.send("asked-again", "a,b", key="k1", delay="3h")
    text = "SELECT key, CAST(body AS STRING) AS body, deliver_at FROM pending WHERE topic = 'asked-again'"
    found = run("sql", text, "--json", "--endpoint", served.endpoint)
    assert found.returncode == 0, found.stderr
    (row,) = [json.loads(line) for line in found.stdout.splitlines()]
    assert (row["key"], row["body"]) == ("k1", "a,b")
    assert row["deliver_at"].endswith("Z")
    assert found.stderr == ""


def test_the_command_tells_what_is_wrong_in_one_line(served, monkeypatch) -> None:
    away = run("sql", "SELECT 1 FROM pending", "--endpoint", "127.0.0.1:9")
    assert away.returncode == 1
    assert "no broker at 127.0.0.1:9" in away.stderr
    both = run("sql", "SELECT 1", "--json", "--csv", "--endpoint", served.endpoint)
    assert both.returncode == 2
    wrong = run("sql", "SELECT nope FROM pending", "--endpoint", served.endpoint)
    assert wrong.returncode == 2
    assert "`nope` cannot be resolved" in wrong.stderr
    assert len(wrong.stderr.strip().splitlines()) == 1
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.setenv("JAVA_HOME", "")
    bare = run("sql", "SELECT 1", "--endpoint", served.endpoint)
    assert bare.returncode == 1
    assert "there is no Java" in bare.stderr


def test_the_million_reminders_in_small(served) -> None:
    result = subprocess.run(
        [sys.executable, _ROOT / "examples" / "reminders" / "reminders.py", "--count", "20000"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "TIDEMILL_ENDPOINT": served.endpoint},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "everything held" in result.stdout
