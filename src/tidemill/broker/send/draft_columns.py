"""Drafts as columns, like those of a request. Pure; checks no more than that columns can be made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

from tidemill.core.model import Draft, Once
from tidemill.core.send_batch import SendColumns, are_ms_or_none

_Values = Sequence[Any]


def _are(*kinds: type) -> Callable[[_Values], bool]:
    return lambda values: set(map(type, values)) <= set(kinds)


def _are_ms(values: _Values) -> bool:
    return None not in values and are_ms_or_none(list(values))


def _are_keys(values: _Values) -> bool:
    return _are(tuple, list)(values) and _are(str)(list(chain.from_iterable(values)))


def _are_named(values: _Values) -> bool:
    return _are(dict)(values) and all(_are(str)([*named, *named.values()]) for named in values)


# Field of a draft, column, default, and whether values are of the very types they should have.
_USUAL: Sequence[tuple[str, str, Any, Callable[[Any], bool]]] = (
    ("deliver_at_ms", "due", None, are_ms_or_none),
    ("delay_ms", "delay", None, are_ms_or_none),
    ("id", "id", None, _are(str, type(None))),
)
_OTHERS: Sequence[tuple[str, str, Any, Callable[[Any], bool]]] = (
    ("level", "level", 0, _are_ms),
    ("keys", "keys", (), _are_keys),
    ("tag", "tag", "", _are(str)),
    ("message_group", "group", "", _are(str)),
    ("properties", "props", {}, _are_named),
    ("born_at_ms", "born", None, are_ms_or_none),
    ("once", "once", Once.NO, _are(Once)),
    ("jitter_ms", "jitter", 0, _are_ms),
    ("has_made_id", "made", False, _are(bool)),
    ("carried", "carried", {}, _are_named),
)
_SENT, _USUAL_VALUES = attrgetter("topic", "body"), attrgetter(*(field for field, *_ in _USUAL))
_OTHER_VALUES = attrgetter(*(field for field, *_ in _OTHERS))
_NO_OTHERS = _OTHER_VALUES(Draft("", b""))


def columns_of(drafts: Sequence[Draft], *, is_checked: bool = False) -> SendColumns | None:
    """The columns of drafts; None if a field is not of the very type it should have."""
    if not drafts:
        return SendColumns([], [])
    if not is_checked and set(map(type, drafts)) != {Draft}:
        return None
    topics, bodies = zip(*map(_SENT, drafts), strict=True)
    if not is_checked and (set(map(type, topics)) != {str} or set(map(type, bodies)) != {bytes}):
        return None
    columns: dict[str, Any] = {}
    others = list(map(_OTHER_VALUES, drafts))
    rows = [(_USUAL, list(map(_USUAL_VALUES, drafts)))]
    if others.count(_NO_OTHERS) < len(others):  # nearly all drafts have none of these
        rows.append((_OTHERS, others))
    for table, values_of_rows in rows:
        for (_, name, default, are_right), values in zip(
            table, zip(*values_of_rows, strict=True), strict=True
        ):
            if values.count(default) < len(values):  # a column of defaults is left out
                if not is_checked and not are_right(values):
                    return None
                columns[name] = list(values)
    if "once" in columns:
        columns["once"] = [once.value for once in columns["once"]]
    numbers: dict[str, int] = {}
    which = [numbers.setdefault(name, len(numbers)) for name in topics]
    return SendColumns(list(numbers), list(bodies), which if len(numbers) > 1 else None, **columns)
