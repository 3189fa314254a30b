"""Numbers drawn with characters."""

from __future__ import annotations

from tidemill.cli.charts import (
    bytes_text,
    lateness_lines,
    lying_bar,
    put_together,
    sparkline,
    standing_bars,
)


def test_a_bar_is_as_long_as_its_share() -> None:
    assert lying_bar(10, 10, 4) == "████"
    assert lying_bar(5, 10, 4) == "██"
    assert lying_bar(1, 8, 1) == "▏"
    assert lying_bar(0, 10, 4) == ""


def test_one_among_a_million_still_shows() -> None:
    assert lying_bar(1, 1_000_000, 10) == "▏"
    assert sparkline([1, 1_000_000], 2) == "▁█"


def test_a_sparkline_holds_the_last_values() -> None:
    assert sparkline([9, 0, 4, 8], 3) == " ▄█"
    assert sparkline([], 3) == ""
    assert sparkline([0, 0], 3) == "  "


def test_standing_bars_begin_with_the_highest_line() -> None:
    assert standing_bars([0, 1, 2, 4], 2) == ["   █", " ▄██"]


def test_neighbours_are_put_together_and_none_is_lost() -> None:
    assert put_together(list(range(10)), 3) == [0 + 1 + 2, 3 + 4 + 5, 6 + 7 + 8, 9]
    assert put_together([1, 2], 1) == [1, 2]
    assert put_together([], 1) == []


def test_bytes_as_people_read_them() -> None:
    assert [bytes_text(n) for n in (5, 2048, 3 << 20, 5 << 40)] == ["5 B", "2.0 KiB", "3.0 MiB", "5.0 TiB"]


def test_every_message_is_in_one_bar() -> None:
    lines = lateness_lines([0, 1, 1, 2, 3, 3, 3, 9])
    assert [line.split("ms")[0].strip() for line in lines] == ["0", "1", "2 to 3", "4 to 7", "8 to 15"]
    assert [line.split("ms")[1].split()[-1:] for line in lines] == [["1"], ["2"], ["4"], [], ["1"]]
    assert lines[2].count("█") == 40


def test_nothing_late_and_nothing_at_all() -> None:
    assert len(lateness_lines([0, 0])) == 1
    assert lateness_lines([]) == []
