"""A table refuses exactly what a single send refuses, field by field, with the same error."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from helpers.hypothesis_examples import examples
from helpers.small_broker import SmallBroker
from tidemill.core.errors import RequestError
from tidemill.core.model import Draft

# Blanks and other characters that are easily missed: of ASCII, of Latin-1, and far beyond.
_ODD = "\t\n\x0b\x0c\r\x1c\x1f \x7f\x85\xa0\u1680\u2003\u2028\u202f\u205f\u3000\ufeff\u200b|%_-.:/"
_TEXT = st.text(st.one_of(st.sampled_from(_ODD), st.characters(exclude_categories=["Cs"])), max_size=12)
_LONG = st.sampled_from(
    [
        n * c
        for n in (64, 65, 127, 128, 129, 4_096, 4_097, 8_192, 8_193, 16_384, 16_385)
        for c in ("x", "\u00e9", "\U0001f600")
    ]
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    small = SmallBroker(tmp_path_factory.mktemp("admission") / "data")
    yield small.broker
    small.check()
    small.close()


def _single(field: str, text: str) -> Draft:
    match field:
        case "topic":
            return Draft(text, b"x")
        case "key":
            return Draft("t", b"x", keys=(text,))
        case "property":
            return Draft("t", b"x", properties={text: text})
        case _:
            return Draft("t", b"x", **{field: text})


def _table(field: str, text: str) -> pa.Table:
    columns = {"body": [b"fine", b"x"], "topic": ["t", "t"]}
    if field == "property":
        columns["properties"] = ["", json.dumps({text: text})]
    else:
        columns[field] = ["t" if field == "topic" else "", text]
    return pa.table(columns)


def _refusal(act) -> tuple[type, str] | None:
    try:
        act()
    except RequestError as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("field", ["topic", "tag", "key", "id", "message_group", "property"])
@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(150)
)
@given(text=st.one_of(_TEXT, _LONG))
@example(text="a\u3000b")
@example(text="a\x85")
@example(text="\ufeffa")
@example(text="UNIQ_KEY")
@example(text="__trace")
def test_a_table_refuses_what_a_single_send_refuses(broker, field, text):
    if not text and field != "property":
        return  # in a table, an empty text means that there is none
    alone = _refusal(lambda: broker.send([_single(field, text)]))
    assert _refusal(lambda: broker.send_table(_table(field, text))) == alone
