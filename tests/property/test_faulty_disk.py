"""FaultyDisk under random work: a power cut shows only what some moment since the last sync had."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidemill.testing import FaultyDisk

_SECTOR = 512
_LENGTH_MAX = 6 * _SECTOR

_writes = st.tuples(st.just("write"), st.integers(0, _LENGTH_MAX), st.integers(1, 3 * _SECTOR))
_resizes = st.tuples(st.sampled_from(["truncate", "preallocate"]), st.integers(1, _LENGTH_MAX), st.just(0))
_scatters = st.tuples(st.just("scatter"), st.integers(0, _LENGTH_MAX), st.integers(1, 4))
_syncs = st.tuples(st.just("sync"), st.just(0), st.just(0))
_work = st.lists(st.one_of(_writes, _resizes, _scatters, _syncs), max_size=12)


def _apply(model: bytearray, kind: str, at: int, count: int, fill: int) -> None:
    """The same operation on plain bytes."""
    if kind == "write":
        model.extend(bytes(max(0, at - len(model))))
        model[at : at + count] = bytes([fill]) * count
    elif kind == "truncate":
        del model[at:]
        model.extend(bytes(at - len(model)))
    elif kind == "preallocate":
        model.extend(bytes(max(0, at - len(model))))


@given(work=_work, seed=st.integers(0, 2**32), power_cut=st.booleans())
def test_a_power_cut_leaves_sectors_and_a_size_that_once_were(
    work: list[tuple[str, int, int]], seed: int, power_cut: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f"
        disk = FaultyDisk(seed)
        file = disk.open(path, create=True)
        disk.sync_dir(path.parent)
        model = bytearray()
        moments = [b""]  # the file after each operation since the last sync
        for fill, (kind, at, count) in enumerate(work, start=1):
            if kind == "sync":
                file.sync()
                moments = [bytes(model)]
                continue
            if kind == "scatter":
                rows = len(model) // 8
                indexes = np.unique(np.arange(at, at + count) % max(1, rows))[:rows]
                if len(indexes):
                    file.scatter(indexes, np.full(len(indexes), fill, "<i8"))
                for index in indexes.tolist():
                    model[index * 8 : index * 8 + 8] = fill.to_bytes(8, "little")
            else:
                _apply(model, kind, at, count, fill)
                if kind == "write":
                    file.write(at, bytes([fill]) * count)
                else:
                    getattr(file, kind)(at)
            assert file.read(0, 2 * _LENGTH_MAX) == bytes(model)
            moments.append(bytes(model))
        with disk.crash(power_cut=power_cut):
            left = path.read_bytes()
        if not power_cut:
            assert left == model
            return
        assert len(left) in {len(moment) for moment in moments}
        for start in range(0, len(left), _SECTOR):
            shown = left[start : start + _SECTOR]
            # A sector may be cut by a smaller size that was kept, or be zero where only the size was kept.
            once = [moment[start : start + _SECTOR].ljust(_SECTOR, b"\0") for moment in moments]
            assert any(
                _is_cut_of(shown.ljust(_SECTOR, b"\0"), version) for version in [*once, bytes(_SECTOR)]
            )


def _is_cut_of(shown: bytes, version: bytes) -> bool:
    return version.startswith(shown.rstrip(b"\0"))
