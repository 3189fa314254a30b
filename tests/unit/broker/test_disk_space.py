"""The word before the disk is full: at the start, and before the first refusal, however fast it fills."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from helpers.small_broker import STORE
from tidemill.broker.broker import Broker
from tidemill.core.errors import DiskFullError
from tidemill.core.limits import KIB
from tidemill.core.model import Draft
from tidemill.store.disk_space import disk_minimum, warning_line
from tidemill.store.message_store import StoreSettings
from tidemill.testing import FaultyDisk

GIB = 1 << 30
SPACIOUS = 512 * KIB
LOW, FULL, AGAIN = "the disk is nearly full", "the disk is full", "the disk has space again"
THERE_AGAIN = "the data directory is there again"


class Said:
    """What was logged about the disk, each line without its figures."""

    def __init__(self, caplog) -> None:
        self._caplog = caplog

    def __call__(self) -> list[str]:
        return [record.getMessage().split(":")[0] for record in self._caplog.records]

    def forget(self) -> None:
        """For what was said of the real disk, which may be low as well."""
        self._caplog.clear()


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.WARNING, "tidemill.store.disk_space")
    return Said(caplog)


def _send_one(small) -> None:
    small.broker.send([Draft("t", bytes(300), delay_ms=90_000)])


def _send_many(small) -> None:
    small.broker.send([Draft("t", b"", delay_ms=90_000) for _ in range(60)])


def _send_table(small) -> None:
    table = pa.table({"body": [b"x"] * 100, "delay_ms": np.full(100, 90_000)})
    small.broker.send_table(table, topic="t")


@pytest.mark.parametrize("send", [_send_one, _send_many, _send_table])
def test_the_warning_comes_before_the_refusal_though_no_time_passes(make_small, said, send):
    for extra in range(0, 16 * KIB, 5 * KIB):  # the disk ends at another place of a segment each time
        small = make_small()
        small.send("t")
        small.disk.capacity_bytes = small.disk.allocated_bytes(small.directory) + SPACIOUS + extra
        small.broker.store.disk_space.look()
        said.forget()
        sent_after_warning = 0
        try:
            while True:
                send(small)
                sent_after_warning += said() == [LOW]
        except DiskFullError:
            small.disk.capacity_bytes = None
        assert sent_after_warning > 0
        assert said() == [LOW, FULL]


def test_a_disk_too_small_for_a_first_message_is_reported_at_the_start(make_small, said, caplog):
    small = make_small()
    small.close()
    small.disk.capacity_bytes = small.disk.allocated_bytes(small.directory) + 16 * KIB
    said.forget()
    small.open()
    assert said() == [FULL]
    room = small.broker.status().disk_space
    assert (room.is_low, room.is_full, room.word) == (True, True, "full")
    assert room.free_bytes < room.refuse_below_bytes == 2 * STORE.segment_bytes
    with pytest.raises(
        DiskFullError, match=r"0\.016 MiB more must be free before sends go on; free space on this disk"
    ) as no:
        small.send("t")
    more = str(no.value).split(", ")[1].split(";")[0]
    assert more in caplog.text, "warning and error say the same"
    missing = small.broker.status().disk_space.refuse_below_bytes
    assert said() == [FULL]
    # What the error asks for is enough.
    small.disk.capacity_bytes = small.disk.allocated_bytes(small.directory) + missing
    small.clock.advance(1_000)
    small.broker.run_due()
    small.send("t")
    small.disk.capacity_bytes = GIB
    small.clock.advance(1_000)
    small.broker.run_due()
    assert said() == [FULL, LOW, AGAIN]
    small.disk.capacity_bytes = None


def test_a_disk_that_is_low_at_the_start_is_reported_with_its_figures(make_small, said, caplog):
    small = make_small(store=replace(STORE, segment_bytes=1024 * KIB, ballast_bytes=1024 * KIB))
    small.send("t")
    small.close()
    small.disk.capacity_bytes = small.disk.allocated_bytes(small.directory) + 2 * 1024 * KIB
    said.forget()
    small.open()
    assert said() == [LOW]
    assert "2 of 5 MiB are free" in caplog.text
    assert (
        "less than 1 MiB are free; free space on this disk, or move the data directory to a larger one"
        in caplog.text
    )
    assert "(at least 10 MiB in all)" in caplog.text
    room = small.broker.status().disk_space
    assert (room.word, room.refuse_below_bytes, room.warn_below_bytes) == ("low", 1024 * KIB, 3 * 1024 * KIB)
    small.send("t")
    small.disk.capacity_bytes = None


def test_what_comes_and_goes_at_the_limit_is_reported_once(make_small, said):
    small = make_small()
    small.send("t")
    used = small.disk.allocated_bytes(small.directory)
    small.disk.capacity_bytes = GIB
    small.broker.store.disk_space.look()
    said.forget()
    line = small.broker.status().disk_space.refuse_below_bytes + 2 * STORE.ballast_bytes
    for free in (line - KIB, line + KIB, line - KIB, line + STORE.segment_bytes + KIB):
        small.disk.capacity_bytes = used + free
        small.clock.advance(1_000)
        small.broker.run_due()
    assert said() == [LOW, AGAIN]
    small.disk.capacity_bytes = None


def test_the_warning_line_is_a_tenth_of_a_disk_but_no_more_than_fifty_gib():
    assert warning_line(0, 100 * GIB, 0) == 10 * GIB
    assert warning_line(0, 1000 * GIB, 0) == 50 * GIB
    assert warning_line(GIB, 5 * GIB, GIB) == 2 * GIB


def test_the_smallest_disk_is_one_number_wherever_it_is_named():
    assert disk_minimum(StoreSettings().segment_bytes, StoreSettings().ballast_bytes) == GIB
    root = Path(__file__).parents[3]
    for page in ("README.md", "docs/operations/sizing.md", "docs/operations/faults.md"):
        assert "1 GiB" in (root / page).read_text(), page


def test_a_directory_that_goes_under_an_open_broker_is_reported_and_that_it_came_back(small, said, tmp_path):
    room = small.broker.store.disk_space
    said.forget()
    small.directory.rename(tmp_path / "elsewhere")
    room.look()
    assert room.view().word == "gone"
    with pytest.raises(DiskFullError, match=r"data directory .* removed or unmounted; restore it"):
        small.broker.send([Draft("t", b"nobody would find it again")])
    small.directory.mkdir()  # as a mount point is there without its volume
    room.look()
    assert small.broker.status().disk_space.is_gone
    small.directory.rmdir()
    (tmp_path / "elsewhere").rename(small.directory)
    room.look()
    assert not room.view().is_gone
    small.broker.send([Draft("t", b"found again")])
    assert said() == [
        f"data directory {small.directory} was removed, renamed or unmounted",
        THERE_AGAIN,
    ]


def test_a_disk_without_any_space_is_refused_with_what_is_needed_and_opens_when_there_is_some(tmp_path):
    with FaultyDisk(1) as disk:
        (tmp_path / "data").mkdir()
        disk.capacity_bytes = 0
        with pytest.raises(
            DiskFullError, match=r"free space .* or name a directory on a larger one \(at least 1,024 MiB"
        ):
            Broker(tmp_path / "data", disk=disk, has_threads=False)
        disk.capacity_bytes = None
        Broker(tmp_path / "data", disk=disk, has_threads=False).close()
