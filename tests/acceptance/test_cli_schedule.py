"""`tidemill schedule` against a real `tidemill serve`: wrong rows, broken files, and what is said of them."""

from __future__ import annotations

import json

import pytest

from acceptance.serving import Served


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    options = ("--clock", "simulated", "--flight-port", "0")
    served = Served(tmp_path_factory.mktemp("cli") / "data", *options).start()
    yield served
    served.stop()


def test_a_wrong_row_at_the_end_of_a_file_is_counted_and_the_others_are_stored(cli, tmp_path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"body": "x", "delay_ms": 60000}\n' * 5_000 + '{"delay_ms": 5}\n')
    code, out, err = cli("schedule", str(file), "--topic", "lines", "--json")
    assert (code, err) == (1, "")
    assert json.loads(out) == {
        "stored": 5_000,
        "repeats": 0,
        "refused": 1,
        "errors": ["the body is null; use an empty one"],
    }


def test_a_value_that_is_none_in_a_csv_file_is_the_fault_of_its_row(cli, tmp_path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(
        "body,delay_ms,deliver_at,once,key\n"
        "1,5.0,,,\n"
        "2,,+30m,,\n"
        "3,soon,,,\n"
        "4,NA,2030-01-01,True,k\n"
        "5,,2030-01-01T00:00:00Z,no,\n"
    )
    code, out, _ = cli("schedule", str(file), "--topic", "commas")
    assert code == 1
    assert out.splitlines()[-1] == f"{file}: 3 stored, 2 refused"
    assert "'+30m' is a delay" in out and "'soon' is not a number" in out


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_the_rows_of_a_file_are_spread_by_jitter(cli, tmp_path, name) -> None:
    file, topic = tmp_path / name, f"spread-{name[5:]}"
    lines = ["body,delay_ms,jitter_ms"] + ["x,60000,30000"] * 20
    if name == "rows.jsonl":
        lines = ['{"body": "x", "delay_ms": 60000}'] * 20
    file.write_text("\n".join(lines) + "\n")
    options = ("--jitter", "30s") if name == "rows.jsonl" else ()
    now_ms = json.loads(cli("status", "--json")[1])["now_ms"]
    code, _, err = cli("schedule", str(file), "--topic", topic, *options)
    assert code == 0, err
    listed = map(json.loads, cli("pending", "--topic", topic, "--json")[1].splitlines())
    later = [message["deliver_at_ms"] - now_ms for message in listed]
    assert len(set(later)) > 10 and all(60_000 <= ms <= 90_000 for ms in later)
    if name == "rows.csv":
        code, _, err = cli("schedule", str(file), "--topic", topic, "--jitter", "5s")
        assert code == 2 and "the jitter is given twice" in err


def test_a_file_that_breaks_off_says_how_much_is_stored(cli, tmp_path) -> None:
    file = tmp_path / "rows.csv"
    row = "x" * 1_000 + ",60000\n"
    file.write_text("body,delay_ms\n" + row * 9_000 + "x,5,6,7\n")
    code, out, err = cli("schedule", str(file), "--topic", "broken")
    assert code == 2 and "cannot be read any further" in err
    listed = map(json.loads, cli("topics", "list", "--json")[1].splitlines())
    stored = sum(topic["sent"] for topic in listed if topic["name"] == "broken")
    # None, where reading ahead met the break first.
    assert out == (f"{file}: {stored:,} stored, 0 refused\n" if stored else "")


def test_a_file_with_unknown_columns_is_refused_whole(cli, tmp_path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("body,delai\nx,5\n")
    code, out, err = cli("schedule", str(file), "--topic", "columns")
    assert (code, out) == (2, "") and "unknown columns ['delai']" in err


@pytest.mark.parametrize(
    ("head", "words"), [("foo,bar", "unknown columns"), ("delay_ms,key", "needs a `body` column")]
)
def test_a_file_with_wrong_columns_and_no_row_is_refused_too(cli, tmp_path, head: str, words: str) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(head + "\n")
    code, out, err = cli("schedule", str(file), "--topic", "columns")
    assert (code, out) == (2, "") and words in err


def test_a_file_with_the_right_columns_and_no_row_sends_nothing(cli, tmp_path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("body,delay_ms\n")
    assert cli("schedule", str(file), "--topic", "columns")[:2] == (0, f"{file}: 0 stored, 0 refused\n")


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_file_that_is_scheduled_again_says_what_was_there_before(cli, tmp_path, wrong: int) -> None:
    """Also where a wrong row makes its part go row by row instead of as a table."""
    file, topic = tmp_path / "rows.jsonl", f"again-{wrong}"
    row = '{{"body": "x", "delay_ms": 60000, "key": "k{n}", "once": true}}\n'
    bad = '{"delay_ms": 5}\n' * wrong
    file.write_text("".join(row.format(n=n) for n in range(3)) + bad)
    code, out, _ = cli("schedule", str(file), "--topic", topic, "--json")
    assert code == wrong
    assert [json.loads(out)[name] for name in ("stored", "repeats", "refused")] == [3, 0, wrong]
    file.write_text("".join(row.format(n=n) for n in range(1, 5)) + bad)
    code, out, _ = cli("schedule", str(file), "--topic", topic)
    assert code == wrong
    assert out.splitlines()[-1] == f"{file}: 2 stored, 2 were there before, {wrong} refused"
