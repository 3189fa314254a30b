"""What is written once and decides for good: identity, level table, head of a log. One may be damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tidemill
from helpers.small_broker import SmallBroker
from tidemill.broker.level_table import with_level_table
from tidemill.core.config import BrokerSettings
from tidemill.core.errors import CorruptionError, StorageError
from tidemill.log.disk import RealDisk
from tidemill.testing import FaultyDisk

HOUR_MS = 3_600_000


@pytest.fixture
def small(tmp_path):
    """A directory with a level table of its own, whose log was cut several times."""
    small = SmallBroker(tmp_path / "data", queues_per_topic=1, levels="1s 9s")
    for _ in range(4):
        small.broker.send([tidemill.Draft("t", b"x" * 900) for _ in range(40)])
        small.advance(2 * HOUR_MS)
        small.broker.run_due()
    assert small.broker.store.log.head
    small.broker.send([tidemill.Draft("t", b"kept", delay_ms=HOUR_MS)])
    yield small
    small.check()
    small.close()


def pair(small, name: str) -> list[Path]:
    return [small.directory / f"{name}.{generation}" for generation in (0, 1)]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("name", ["identity", "levels", "log/head"])
def test_one_damaged_file_of_a_pair_is_no_harm(small, name, which) -> None:
    broker_id = small.broker.id
    small.kill()
    path = pair(small, name)[which]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    small.settings = replace(small.settings, levels="")
    small.open()
    assert small.broker.id == broker_id
    assert small.broker.settings.levels == "1s 9s"


def test_a_damaged_level_table_is_refused_unless_one_is_given(tmp_path) -> None:
    given, kept = BrokerSettings(levels="1s 9s"), BrokerSettings()
    with_level_table(given, RealDisk(), tmp_path)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptionError, match="start with --levels"):
        with_level_table(kept, RealDisk(), tmp_path)
    with_level_table(given, RealDisk(), tmp_path)
    assert with_level_table(kept, RealDisk(), tmp_path).levels == "1s 9s"


def test_a_directory_of_an_earlier_version_gets_its_second_identity(small) -> None:
    small.kill()
    pair(small, "identity")[0].unlink()
    small.open()
    assert pair(small, "identity")[0].exists()


def test_an_identity_damaged_twice_is_refused(small) -> None:
    small.kill()
    kept = {path: path.read_bytes() for path in pair(small, "identity")}
    for path in kept:
        path.write_bytes(b"")
    with pytest.raises(StorageError, match="identity file is missing or damaged"):
        small.open()
    for path, content in kept.items():
        path.write_bytes(content)
    small.disk = FaultyDisk(1)
    small.open()
