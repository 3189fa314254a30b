"""The consumers' checkpoints and log, damaged: each generation alone is no harm, more is refused."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.small_broker import SmallBroker
from tidemill.cli.rebuild import rebuild
from tidemill.core.errors import CorruptionError
from tidemill.core.model import Draft
from tidemill.log.checkpoint import decode_checkpoint
from tidemill.log.disk import RealDisk
from tidemill.log.head_record import HeadRecord
from tidemill.testing import FaultyDisk

COUNT = 150


@pytest.fixture
def small(tmp_path):
    """Several checkpoints, a log that was cut between them, and acknowledgements after the newest."""
    small = SmallBroker(tmp_path / "data", queues_per_topic=1)
    small.broker.send([Draft("t", b"%d" % i) for i in range(COUNT)])
    for _ in range(4):
        take(small, 30)
        small.broker.store.checkpoint()
    take(small, 5)
    yield small
    small.close()


def take(small, count: int) -> None:
    """Receive and acknowledge one by one: so many frames in the consumer log."""
    for _ in range(count):
        (delivery,) = small.broker.receive("t", "g", count=1)
        small.broker.ack([delivery.ack_token])


def settled(small) -> int:
    """How many messages the group will not get again: all that were acknowledged, and none else."""
    small.advance(120_000)
    left = small.broker.receive("t", "g", count=COUNT)
    small.check()
    return COUNT - len(left)


def checkpoints(small) -> list[Path]:
    """The older generation, then the newer."""
    paths = [small.directory / "consumers" / f"checkpoint.{n}" for n in (0, 1)]
    return sorted(paths, key=lambda path: decode_checkpoint(path.read_bytes()).generation)


def segments(small) -> list[Path]:
    return sorted((small.directory / "consumers").glob("*.log"))


@contextmanager
def refused(small, match: str):
    """Opening is refused and changes nothing; with the bytes restored it goes on."""
    directory = small.directory / "consumers"
    before = {path: path.read_bytes() for path in directory.iterdir()}
    yield
    damaged = {path: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(CorruptionError, match=match):
        small.open()
    assert {path: path.read_bytes() for path in directory.iterdir()} == damaged
    for path, content in before.items():
        path.write_bytes(content)
    small.disk = FaultyDisk(1)
    small.open()
    assert settled(small) == 125


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def test_the_log_is_kept_back_to_the_older_checkpoint(small) -> None:

    offsets = [
        json.loads(decode_checkpoint(path.read_bytes()).content)["offset"] for path in checkpoints(small)
    ]
    kept = [int(path.stem) for path in segments(small)]
    assert 0 < kept[0] <= offsets[0], "it is cut, but not beyond the older one"
    assert offsets[0] < offsets[1]


@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("how", ["flip", "cut", "empty", "gone"])
def test_one_damaged_checkpoint_is_no_harm(small, which, how, is_killed) -> None:
    small.kill() if is_killed else small.close()
    path = checkpoints(small)[which]
    match how:
        case "flip":
            flip(path, path.stat().st_size // 2)
        case "cut":
            os.truncate(path, path.stat().st_size - 1)
        case "empty":
            path.write_bytes(b"")
        case "gone":
            path.unlink()
    small.open()
    assert settled(small) == 125


@pytest.mark.parametrize("which", [0, 1])
def test_it_goes_on_after_a_damaged_checkpoint(small, which) -> None:
    small.kill()
    flip(checkpoints(small)[which], 40)
    small.open()
    take(small, 5)
    small.broker.store.checkpoint()
    take(small, 5)
    small.kill()
    flip(checkpoints(small)[1], 40)
    small.open()
    assert settled(small) == 135


def test_two_damaged_checkpoints_are_refused(small) -> None:
    small.kill()
    with refused(small, "rebuild --new-consumers"):
        for path in checkpoints(small):
            flip(path, 40)


def test_a_checkpoint_below_the_head_of_the_log_is_refused(small, capsys) -> None:
    small.kill()
    oldest = segments(small)[0]
    flip(checkpoints(small)[1], 40)
    oldest.unlink()
    head = int(segments(small)[0].stem)
    record = HeadRecord(RealDisk(), small.directory / "consumers")
    record.load()
    record.save(head)  # as an older version left it
    with pytest.raises(CorruptionError, match=rf"consumers: .* begins at offset {head}.*--new-consumers"):
        small.open()
    small.disk = FaultyDisk(1)
    assert rebuild(small.directory, new_consumers=True) == 0
    assert "was lost" in capsys.readouterr().out
    small.open()
    assert settled(small) == 0


def test_damage_in_the_log_before_the_newest_checkpoint_is_no_harm(small) -> None:
    small.kill()
    flip(segments(small)[0], 100)
    small.open()
    assert settled(small) == 125


def test_damage_in_the_log_after_the_checkpoint_is_refused_with_file_and_offset(small) -> None:
    small.kill()
    path = segments(small)[-1]
    with refused(small, rf"{path}: the frame at offset \d+ .*--new-consumers"):
        used = len(path.read_bytes().rstrip(b"\0"))
        flip(path, used - 4 * 72)  # followed by frames that say the log was safe there


def test_a_rebuild_can_begin_again_without_a_damaged_log(small, capsys) -> None:
    small.kill()
    path = segments(small)[-1]
    flip(path, len(path.read_bytes().rstrip(b"\0")) - 4 * 72)
    assert rebuild(small.directory, new_consumers=True) == 0
    assert "was lost" in capsys.readouterr().out
    small.open()
    assert settled(small) == 0


def test_a_rebuild_keeps_consumers_that_can_be_read(small, capsys) -> None:
    small.kill()
    assert rebuild(small.directory, new_consumers=True) == 0
    assert "stays as it is" in capsys.readouterr().out
    small.open()
    assert settled(small) == 125


def test_a_log_of_something_else_is_refused(tmp_path) -> None:
    small = SmallBroker(tmp_path / "data")
    small.send("t")
    small.kill()
    (theirs,), path = (small.directory / "log").glob("*.log"), small.directory / "consumers" / f"{0:020d}.log"
    path.write_bytes(theirs.read_bytes())
    with pytest.raises(CorruptionError, match=r"consumers: the frame at offset \d+ is of another log"):
        small.open()


def test_what_a_message_sent_back_settled_is_known_with_the_older_checkpoint(small) -> None:
    (delivery,) = small.broker.receive("t", "g", count=1)
    small.broker.send_back([delivery.ack_token], 3)
    small.broker.store.checkpoint()
    small.kill()
    flip(checkpoints(small)[1], 40)
    small.open()
    assert settled(small) == 125, "it comes once more, as sent back, and not as it was"
