"""The demo's picture of lateness."""

from __future__ import annotations

from tidemill.cli.demo.lateness_picture import lateness_lines


def test_every_message_is_in_one_bar() -> None:
    lines = lateness_lines([0, 1, 1, 2, 3, 3, 3, 9])
    assert [line.split("ms")[0].strip() for line in lines] == ["0", "1", "2 to 3", "4 to 7", "8 to 15"]
    assert [line.split("ms")[1].split()[-1:] for line in lines] == [["1"], ["2"], ["4"], [], ["1"]]
    assert lines[2].count("█") == 40


def test_nothing_late_and_nothing_at_all() -> None:
    assert len(lateness_lines([0, 0])) == 1
    assert lateness_lines([]) == []
