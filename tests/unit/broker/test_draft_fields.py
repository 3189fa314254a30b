"""No field of a draft is lost on the way of a send: each is carried by every form that a draft takes."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from typing import Any

import pytest

from tidemill.broker.send.draft_columns import columns_of
from tidemill.client.async_client import AsyncClient
from tidemill.client.client import BlockingVerbs
from tidemill.client.send.drafts import draft_of
from tidemill.core.draft_kinds import check_kinds
from tidemill.core.errors import RequestError
from tidemill.core.model import Draft, Once
from tidemill.core.send_batch import SendColumns, decode_columns, encode_drafts, join_columns

_PLAIN = Draft("orders", b"body")

# One value of each field that is not its default. A new field needs one.
_GIVEN: dict[str, Any] = {
    "topic": "others",
    "body": b"other",
    "deliver_at_ms": 5_000,
    "delay_ms": 5_000,
    "level": 3,
    "id": "order-17",
    "keys": ("order-17",),
    "tag": "paid",
    "message_group": "customer-4",
    "properties": {"a": "b"},
    "born_at_ms": 4_000,
    "once": Once.REPLACE,
    "jitter_ms": 100,
    "has_made_id": True,
    "carried": {"TRACE_CONTEXT": "t"},
}
# Set by an endpoint or a library, never by a caller: they are not part of a request over the wire.
_NOT_SENT = {"born_at_ms", "has_made_id", "carried"}
# Set by the program itself, so its type needs no check.
_NOT_CHECKED = {"has_made_id"}
# What `send` names otherwise.
_ARGUMENTS = {"deliver_at_ms": "at", "delay_ms": "delay", "jitter_ms": "jitter"}


def _draft(name: str) -> Draft:
    return replace(_PLAIN, **{name: _GIVEN[name]})


def _columns(*drafts: Draft) -> SendColumns:
    columns = columns_of(drafts)
    assert columns is not None
    return columns


def test_every_field_has_a_value_here_that_is_not_its_default() -> None:
    assert _GIVEN.keys() == {field.name for field in fields(Draft)}
    assert not [name for name, value in _GIVEN.items() if getattr(_PLAIN, name) == value]


@pytest.mark.parametrize("name", _GIVEN)
def test_the_columns_of_drafts_have_every_field(name: str) -> None:
    assert _columns(_draft(name)) != _columns(_PLAIN)


@pytest.mark.parametrize("name", _GIVEN)
def test_joined_requests_keep_every_field(name: str) -> None:
    joined = join_columns([_columns(_PLAIN), _columns(_draft(name)), _columns(_PLAIN)])
    alone = _columns(_PLAIN, _draft(name), _PLAIN)
    for field in fields(SendColumns):
        values, expected = getattr(joined, field.name), getattr(alone, field.name)
        assert _without_none(field.name, values) == _without_none(field.name, expected), field.name


def _without_none(column: str, values: Any) -> Any:
    """A message without keys or properties has None in one of them and an empty value in the other."""
    return (
        [value or None for value in values] if values and column in ("keys", "props", "carried") else values
    )


@pytest.mark.parametrize("name", sorted(_GIVEN.keys() - _NOT_SENT))
def test_columns_become_drafts_with_every_field(name: str) -> None:
    assert _columns(_draft(name), _PLAIN).drafts() == [_draft(name), _PLAIN]


@pytest.mark.parametrize("name", sorted(_GIVEN.keys() - _NOT_SENT))
def test_the_wire_carries_every_field(name: str) -> None:
    assert decode_columns(encode_drafts([_draft(name), _PLAIN])).drafts() == [_draft(name), _PLAIN]


@pytest.mark.parametrize("name", sorted(_GIVEN.keys() - _NOT_CHECKED))
def test_the_type_of_every_field_is_checked(name: str) -> None:
    wrong = replace(_PLAIN, **{name: object()})
    assert columns_of([wrong]) is None
    with pytest.raises(RequestError):
        check_kinds(wrong)


@pytest.mark.parametrize("send", [draft_of, BlockingVerbs.send, AsyncClient.send])
def test_every_field_of_a_caller_is_an_argument_of_send(send: Any) -> None:
    arguments = set(inspect.signature(send).parameters)
    assert {_ARGUMENTS.get(name, name) for name in _GIVEN.keys() - _NOT_SENT} <= arguments
