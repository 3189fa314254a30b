"""From a DataFrame's columns to the broker's: identity, times, properties. No Spark runs here."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from tidemill.core.errors import RequestError
from tidemill.core.limits import FRAME_ROWS_MAX, ID_CHARS_MAX
from tidemill.spark.options import Options
from tidemill.spark.schedule_columns import SchedulePlan, check_schedule, message_table
from tidemill.spark.scheduling import framed
from tidemill.spark.sources import _schedule_plan

_PLAN = SchedulePlan(topic="t")
_UTC = pa.timestamp("us", "UTC")


def _table(count: int = 2, **columns) -> pa.Table:
    return pa.table({"body": ["x"] * count, "key": [f"k{n}" for n in range(count)], **columns})


def _ids(table: pa.Table, plan: SchedulePlan = _PLAN, run: str = "run") -> list[str]:
    return message_table(table, plan, run).column("id").to_pylist()


def test_a_row_with_a_time_is_the_same_message_in_every_run() -> None:
    table = _table(deliver_at=pa.array([1_000_000, 1_000_001], _UTC))
    assert _ids(table) == _ids(table, run="another") == ["k0@1000", "k1@1001"]
    assert _ids(_table(deliver_at=pa.array([1000, 1001]))) == ["k0@1000", "k1@1001"]
    assert _ids(table, SchedulePlan(topic="t", job="j")) == ["j/k0@1000", "j/k1@1001"]


def test_a_row_with_a_delay_is_the_same_message_within_its_run() -> None:
    table = _table(delay=["90s", None])
    assert _ids(table) == ["run/k0@90000", "run/k1@"]
    assert _ids(table) != _ids(table, run="another")
    job = SchedulePlan(topic="t", job="j")
    assert _ids(table, job) == _ids(table, job, "another")
    assert _ids(_table()) == ["run/k0@", "run/k1@"]
    assert _ids(_table(deliver_at=pa.array([5, None], pa.int64()))) == ["k0@5", "run/k1@"]


def test_given_ids_stay_and_long_keys_become_short_ids() -> None:
    assert _ids(_table(id=["mine", ""])) == ["mine", "run/k1@"]
    long_keys = _table(2).set_column(1, "key", pa.array(["k" * 200, "k" * 200 + "l"]))
    ids = _ids(long_keys)
    assert len(set(ids)) == 2
    assert max(map(len, ids)) <= ID_CHARS_MAX
    assert ids == _ids(long_keys)


def test_a_row_that_could_not_be_known_again_is_refused() -> None:
    with pytest.raises(RequestError, match="neither key nor id"):
        _ids(_table().set_column(1, "key", pa.array(["k", None], pa.string())))
    plain = message_table(pa.table({"body": ["x"]}), SchedulePlan(topic="t", is_once=False), "run")
    assert plain.column_names == ["body"]
    with pytest.raises(RequestError, match="a body is null"):
        message_table(pa.table({"body": pa.array([None], pa.string()), "key": ["k"]}), _PLAN, "run")


def test_delays_become_milliseconds_never_too_short() -> None:
    for delay, expected in (
        (["90s", "1h30m"], [90_000, 5_400_000]),
        (pa.array([5, None], pa.int32()), [5, None]),
        (pa.array([1_000_001, 2_000_000], pa.duration("us")), [1_001, 2_000]),
    ):
        assert message_table(_table(delay=delay), _PLAN, "run").column("delay_ms").to_pylist() == expected


@given(st.lists(st.none() | st.dictionaries(st.text(), st.text(), max_size=4), min_size=1, max_size=8))
def test_properties_are_what_the_map_was(maps: list[dict[str, str] | None]) -> None:
    column = pa.array(
        [None if one is None else list(one.items()) for one in maps], pa.map_(pa.string(), pa.string())
    )
    made = message_table(_table(len(maps), properties=column), _PLAN, "run").column("properties")
    assert [json.loads(text) if text else None for text in made.to_pylist()] == maps


def test_batches_are_gathered_into_frames() -> None:
    small = [pa.record_batch({"body": ["x"] * 10_000}) for _ in range(14)]
    assert [table.num_rows for table in framed(small)] == [60_000, 60_000, 20_000]
    large = pa.record_batch({"body": ["x" * 1_000] * 50_000})
    tables = list(framed([large]))
    assert sum(table.num_rows for table in tables) == 50_000
    assert max(table.nbytes for table in tables) <= 12 << 20
    wide = pa.record_batch({"body": [""] * (FRAME_ROWS_MAX + 1)})
    assert max(table.num_rows for table in framed([wide])) <= FRAME_ROWS_MAX
    assert list(framed([])) == []


def test_jitter_is_a_column_and_changes_no_id() -> None:
    table = _table(delay=["90s", "5s"])
    plan = SchedulePlan(topic="t", jitter_ms=30_000)
    spread = message_table(table, plan, "run")
    assert spread.column("jitter_ms").to_pylist() == [30_000, 30_000]
    assert _ids(table, plan) == _ids(table)
    assert "jitter_ms" not in message_table(table, _PLAN, "run").column_names


def test_jitter_needs_a_time_and_no_message_group() -> None:
    text, plan = StringType(), SchedulePlan(topic="t", jitter_ms=5)
    fields = [StructField(name, text) for name in ("body", "key")]
    check_schedule(StructType([*fields, StructField("delay", text)]), plan)
    with pytest.raises(RequestError, match="option jitter needs a column `deliver_at` or `delay`"):
        check_schedule(StructType([*fields, StructField("level", IntegerType())]), plan)
    grouped = [*fields, StructField("delay", text), StructField("message_group", text)]
    with pytest.raises(RequestError, match="option jitter does not go with a column `message_group`"):
        check_schedule(StructType(grouped), plan)


@pytest.mark.parametrize("jitter", ["soon", "-5s", "5"])
def test_a_jitter_that_is_no_duration_is_refused(jitter) -> None:
    with pytest.raises(RequestError, match=f"option jitter: not a duration: '{jitter}'"):
        _schedule_plan(Options({"topic": "t", "jitter": jitter}, "tidemill", ("topic", "jitter"), {}))
    options = Options({"topic": "t", "jitter": "30s"}, "tidemill", ("topic", "jitter"), {})
    assert _schedule_plan(options).jitter_ms == 30_000
