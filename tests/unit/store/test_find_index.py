"""The find index: whether a hash is there, wherever its pair lies by now."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.log.disk import RealDisk
from tidemill.store.damage import Repairs
from tidemill.store.find.find_index import FindIndex
from tidemill.store.find.find_runs import PLACE_BIT, are_places, places_in, request_frames_in, request_ref


@pytest.fixture
def find(tmp_path: Path) -> FindIndex:
    return FindIndex(RealDisk(), tmp_path / "find", Repairs(), memory_pairs_max=8)


def _add(find: FindIndex, *hashes: int) -> None:
    find.add(np.array(hashes, np.uint64), np.arange(len(hashes), dtype=np.uint64))


def _has_any(find: FindIndex, *hashes: int) -> bool:
    asked = np.array(hashes, np.uint64)
    found = find.has_any(asked)
    assert found == bool(len(find.find_many(asked)[0]))
    return found


def test_a_hash_is_found_in_memory_while_it_is_written_and_in_a_file(find) -> None:
    far = 1 << 63
    assert not _has_any(find, 1, far)
    _add(find, 5, far)
    assert _has_any(find, 1, far)
    assert not _has_any(find, 1, far + 1)
    find.begin_flush(100)
    assert _has_any(find, far)
    _add(find, 7)
    find.end_flush(find.write_flushing())
    assert _has_any(find, far, 1)
    assert _has_any(find, 7)
    assert not _has_any(find, 1, far + 1, (1 << 64) - 1)


@given(st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=9), max_size=6), st.data())
def test_it_knows_just_what_was_added(tmp_path_factory, parts, data) -> None:
    find = FindIndex(RealDisk(), tmp_path_factory.mktemp("find"), Repairs(), memory_pairs_max=4)
    for number, part in enumerate(parts):
        _add(find, *part)
        if data.draw(st.booleans()):
            find.begin_flush(number + 1)
            find.end_flush(find.write_flushing())
    added = {hashed for part in parts for hashed in part}
    asked = data.draw(st.lists(st.integers(0, 80), min_size=1, max_size=5))
    assert _has_any(find, *asked) == bool(added & set(asked))


@given(
    st.lists(st.integers(0, 1 << 40)),
    st.lists(st.tuples(st.integers(0, (1 << 43) - 1), st.integers(0, 65_535))),
)
def test_refs_of_requests_and_of_messages_are_distinguished(seqs, frames):
    offsets = [offset * 8 for offset, _ in frames]
    places = [offset << 16 | row for offset, (_, row) in zip(offsets, frames, strict=True)]
    refs = [*seqs, *(int(PLACE_BIT) | place for place in places), *map(request_ref, offsets)]
    array = np.array(refs, np.uint64)
    assert places_in(array).tolist() == places
    assert request_frames_in(array) == offsets
    assert are_places(array).tolist() == [False] * len(seqs) + [True] * len(places) + [False] * len(offsets)


def test_nothing_is_not_worth_a_file_however_small_the_memory(tmp_path):
    """A run of no bytes of log, merged with the one before it, would take the place of that one's file."""
    assert not FindIndex(RealDisk(), tmp_path / "find", Repairs(), memory_pairs_max=4).is_worth_writing
