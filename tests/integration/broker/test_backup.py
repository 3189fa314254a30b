"""A backup of a live broker: the truth at one moment, openable, whatever happens meanwhile."""

from __future__ import annotations

import threading
from itertools import count

import pytest

import tidemill
from helpers.small_broker import SmallBroker
from tidemill.broker.backup import CopyProgress, back_up
from tidemill.broker.embedded import open_broker
from tidemill.core.errors import DiskFullError, RequestError, SyncFailedError
from tidemill.core.limits import MIB
from tidemill.core.model import Draft
from tidemill.testing.faults import FaultPlan


def test_a_copy_opens_to_the_same_state(small, tmp_path) -> None:
    handles = [small.send("orders", b"far", delay_ms=60_000, keys=(f"k{i}",)).handle for i in range(50)]
    small.broker.cancel(handles[:5])
    small.send("orders", b"now")
    (delivery,) = small.broker.receive("orders", "g")
    small.fill_segment()
    report = back_up(small.broker, tmp_path / "copy")
    assert report.pending == 45
    for directory in (small.directory, tmp_path / "copy"):
        assert directory.stat().st_mode & 0o077 == 0  # they hold all bodies
    state = small.state()
    copy = SmallBroker(tmp_path / "copy", clock=small.clock)
    assert copy.broker.id == small.broker.id
    assert copy.state() == state
    assert copy.broker.ack([delivery.ack_token]) == [True]
    assert copy.broker.cancel(handles[5:6]) == [tidemill.CancelAnswer.CANCELLED]
    copy.advance(60_000)
    assert copy.bodies("orders").count(b"far") == 44
    copy.check()
    copy.close()


def test_what_comes_after_the_moment_is_not_in_it(small, tmp_path) -> None:
    small.send("orders", b"before")
    back_up(small.broker, tmp_path / "copy")
    small.send("orders", b"after")
    copy = SmallBroker(tmp_path / "copy", clock=small.clock)
    assert copy.bodies("orders") == [b"before"]
    copy.close()
    assert small.bodies("orders") == [b"before", b"after"]


def test_a_backup_survives_a_power_cut(small, tmp_path) -> None:
    small.send("orders", b"x", delay_ms=1_000)
    back_up(small.broker, tmp_path / "copy")
    small.kill_and_open(power_cut=True)
    copy = SmallBroker(tmp_path / "copy", clock=small.clock)
    assert len(copy.broker.views.pending()) == 1
    copy.close()


@pytest.mark.parametrize("where", ["data", "data/inside", "full"])
def test_it_goes_into_a_new_directory_only(small, tmp_path, where) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    with pytest.raises(RequestError):
        back_up(small.broker, tmp_path / where)


def test_backups_under_load_hold_every_answered_send(tmp_path) -> None:
    """Threads send and cancel while copies are made; each copy holds all that was answered before."""
    with open_broker(tmp_path / "data", segment_bytes=1 << 20) as broker:
        stop, answered, numbers = threading.Event(), [], count()

        def send() -> None:
            while not stop.is_set():
                receipts = broker.send(
                    [
                        Draft("orders", bytes(200), delay_ms=3_600_000, id=f"m{next(numbers)}")
                        for _ in range(20)
                    ]
                )
                broker.cancel([receipts[0].handle])
                answered.extend(receipt.id for receipt in receipts[1:])

        threads = [threading.Thread(target=send) for _ in range(3)]
        for thread in threads:
            thread.start()
        copies = []
        for number in range(3):
            goal = len(answered) + 500
            while len(answered) < goal:
                stop.wait(0.001)
            known = list(answered)
            copies.append((tmp_path / f"copy-{number}", known))
            back_up(broker, copies[-1][0])
        stop.set()
        for thread in threads:
            thread.join()
    for directory, known in copies:
        with open_broker(directory) as copy:
            waiting = {message.id for message in copy.views.pending(limit=1_000_000)}
            assert set(known) <= waiting
            assert not copy.check(directory.with_suffix(".scratch"))


def test_a_broker_that_never_had_a_message_can_be_copied(small, tmp_path) -> None:
    back_up(small.broker, tmp_path / "copy")
    copy = SmallBroker(tmp_path / "copy")
    assert copy.broker.status().pending == 0
    copy.check()
    copy.close()


def test_a_copy_that_would_fill_the_disk_is_refused_before_anything_is_made(small, tmp_path) -> None:
    small.fill_segment()
    used = small.disk.allocated_bytes(small.directory)
    small.disk.capacity_bytes = used + MIB  # enough for the bytes themselves
    with pytest.raises(DiskFullError, match=r"no space for a backup in .*: it needs [\d,]+ bytes"):
        back_up(small.broker, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert small.broker.store.disk_space.view().word != "full"
    small.disk.capacity_bytes = used + 2 * MIB
    back_up(small.broker, tmp_path / "copy")
    small.disk.capacity_bytes = None


class _Filling(CopyProgress):
    """Another process fills the disk while the copy is made."""

    def __init__(self, small: SmallBroker) -> None:
        super().__init__()
        self._disk = small.disk

    def add(self, count: int) -> None:
        self._disk.capacity_bytes = 0


@pytest.mark.parametrize("is_there", [True, False])
def test_a_copy_that_fails_leaves_nothing_and_its_name_can_be_used_again(small, tmp_path, is_there) -> None:
    small.fill_segment()
    small.fill_segment()
    target = tmp_path / "copy"
    if is_there:
        target.mkdir()
    with pytest.raises(DiskFullError):
        back_up(small.broker, target, _Filling(small))
    small.disk.capacity_bytes = None
    assert list(tmp_path.glob("copy/*")) == [] and target.exists() == is_there
    small.disk.arm(FaultPlan(fail_sync_at=5))
    with pytest.raises(SyncFailedError):
        back_up(small.broker, target)
    small.disk.arm(FaultPlan())
    assert list(tmp_path.glob("copy/*")) == [] and target.exists() == is_there
    back_up(small.broker, target)
    copy = SmallBroker(target, clock=small.clock)
    copy.check()
    copy.close()


class _Noted(CopyProgress):
    def __init__(self) -> None:
        super().__init__()
        self.shares: list[tuple[int, int]] = []

    def add(self, count: int) -> None:
        super().add(count)
        self.shares.append((self.done, self.total))


def test_a_copy_says_how_far_it_is(small, tmp_path) -> None:
    small.fill_segment()
    small.fill_segment()
    progress = _Noted()
    report = back_up(small.broker, tmp_path / "copy", progress)
    copied = [done for done, total in progress.shares if total == report.log_end]
    assert len(copied) >= 3
    assert copied == sorted(copied)
    assert report.log_end in copied
    assert (progress.done, progress.total) == (0, 0)
