"""Values of an Arrow column by row: what Arrow itself would give."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidemill.store.formats.arrow_values import ArrowValues

_COLUMNS = st.one_of(
    st.lists(st.text(st.characters(codec="utf-8"), max_size=5)).map(lambda v: pa.array(v, pa.string())),
    st.lists(st.binary(max_size=5)).map(lambda v: pa.array(v, pa.binary())),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1)).map(lambda v: pa.array(v, pa.int64())),
    st.lists(st.integers(0, 255)).map(lambda v: pa.array(v, pa.uint8())),
)


@given(_COLUMNS, st.data())
def test_values_are_those_that_arrow_gives(column, data) -> None:
    start = data.draw(st.integers(0, len(column)))
    part = column.slice(start, data.draw(st.integers(0, len(column) - start)))
    rows = data.draw(st.lists(st.integers(0, len(part) - 1), max_size=9)) if len(part) else []
    (found,) = ArrowValues(pa.record_batch([part], ["one"]), ["one"]).at(np.array(rows, np.int64))
    assert found == part.take(pa.array(rows, pa.int64())).to_pylist()
