"""The ready reader against a sorted list: by due time over all files, bounded, gone when settled."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.model import Via
from tidemill.log.disk import RealDisk
from tidemill.release.ready_reader import ReadyReader
from tidemill.timer.ready_files import ReadyFiles
from tidemill.timer.ready_format import ReadyHeader, Runner
from tidemill.timer.ready_row_format import READY
from tidemill.timer.target import shard_directory

_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 1), st.lists(st.integers(0, 30), min_size=1, max_size=15)),
        st.tuples(st.just("take"), st.integers(0, 35), st.integers(1, 12)),
        st.tuples(st.just("settle"), st.integers(1, 60)),
        st.tuples(st.just("reopen")),
    ),
    max_size=25,
)


def _no_damage(shard: int, why: str) -> None:
    raise AssertionError(f"shard {shard}: {why}")


class _Model:
    """Ready files of two shards, and the rows that were not taken yet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.disk = RealDisk()
        self.shards = [ReadyFiles(self.disk, shard_directory(directory, shard)) for shard in (0, 1)]
        for shard in self.shards:
            self.disk.make_dir(shard.directory)
        self.reader = ReadyReader(self.disk, directory, _no_damage)
        self.waiting: list[tuple[int, int]] = []
        self.files: dict[Path, list[tuple[int, int]]] = {}
        self.settled: set[int] = set()
        self.next_seq = self.step_number = 0

    def write(self, shard: int, dues: list[int]) -> None:
        pairs = sorted((due, self.next_seq + i) for i, due in enumerate(dues))
        self.next_seq += len(dues)
        self.step_number += 1
        header = ReadyHeader(
            shard=shard, epoch=1, step=self.step_number, from_tick=0, until_tick=9, runner=Runner.EMBEDDED
        )
        name = self.shards[shard].write(
            header, np.array(pairs, READY), self.placements_of([seq for _, seq in pairs])
        )
        self.files[self.shards[shard].directory / str(name)] = pairs
        self.waiting = sorted(self.waiting + pairs)
        self.reader.look()

    @staticmethod
    def placements_of(seqs):
        """Stored as one number for all in some files, one by one in the others."""
        placements = np.asarray(seqs) // 40 % 3
        return np.where(placements == 2, np.asarray(seqs) % 5, placements).astype(np.uint16)

    def take(self, now_ms: int, limit: int) -> None:
        expected = [pair for pair in self.waiting if pair[0] <= now_ms][:limit]
        rows = self.reader.take_due(now_ms, limit)
        assert list(zip(rows["deliver_at_ms"].tolist(), rows["seq"].tolist(), strict=True)) == expected
        assert set(rows["via"].tolist()) <= {Via.EMBEDDED}
        assert (rows["placements"] == self.placements_of(rows["seq"])).all()
        self.waiting = self.waiting[len(expected) :]

    def settle(self, below_seq: int) -> None:
        taken = {seq for pairs in self.files.values() for _, seq in pairs} - {seq for _, seq in self.waiting}
        self.settled |= {seq for seq in taken if seq < below_seq}
        self.reader.sweep(lambda seqs: ~np.isin(seqs, list(self.settled)))
        for path, pairs in list(self.files.items()):
            is_done = all(seq in self.settled for _, seq in pairs)
            assert self.disk.exists(path) != is_done
            if is_done:
                del self.files[path]

    def reopen(self) -> None:
        """What was taken and not settled is handed over again."""
        self.reader = ReadyReader(self.disk, self.directory, _no_damage)
        self.reader.look()
        self.waiting = sorted(pair for pairs in self.files.values() for pair in pairs)

    def compare(self) -> None:
        assert self.reader.count == len(self.waiting)
        assert self.reader.next_due_ms() == (self.waiting[0][0] if self.waiting else None)


@settings(deadline=None)
@given(_STEPS)
def test_ready_files_are_read_by_due_time_and_removed_when_settled(steps):
    with tempfile.TemporaryDirectory() as folder:
        model = _Model(Path(folder))
        for step in steps:
            getattr(model, step[0])(*step[1:])
            model.compare()


def test_a_file_that_somebody_removed_is_forgotten(tmp_path):
    model = _Model(tmp_path)
    model.write(0, [5, 6])
    model.write(1, [7])
    for path in list(model.files)[:1]:
        path.unlink()
    model.reader.look()
    assert model.reader.count == 1
    assert model.reader.next_due_ms() == 7
