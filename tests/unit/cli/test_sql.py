"""How the answer to a query is printed; the query itself is in tests/spark."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tidemill.cli.sql import print_csv, print_json, print_table

_TABLE = pa.table(
    {
        "key": ["a,b", None],
        "count": [1_234_567, 0],
        "at": pa.array([1_800_000_000_000_999, None], pa.timestamp("us", "UTC")),
        "body": pa.array([b"text", b"\xff"]),
        "list": [["x"], []],
    }
)


def test_json_has_plain_values(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(_TABLE)
    first, second = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert first["at"] == "2027-01-15T08:00:00.000Z"
    assert (first["body"], second["body"]) == ("text", "/w==")
    assert second == {"key": None, "count": 0, "at": None, "body": "/w==", "list": []}


def test_csv_quotes_what_it_must(capsys: pytest.CaptureFixture[str]) -> None:
    print_csv(_TABLE)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "key,count,at,body,list"
    assert lines[1] == '"a,b",1234567,2027-01-15T08:00:00.000Z,text,"[""x""]"'
    assert lines[2] == ",0,,/w==,[]"


def test_a_table_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(_TABLE)
    text = capsys.readouterr().out
    assert "1,234,567" in text
    assert "null" in text
    assert "\x1b" not in text
    print_table(_TABLE.slice(0, 0))
    assert "no rows" in capsys.readouterr().out
