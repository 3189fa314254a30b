"""Errors: one root, grouped by who must act, each with a code of its own."""

from __future__ import annotations

from tidemill.core import errors
from tidemill.core.errors import error_of

_ALL = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.TidemillError)
]


def test_every_error_has_its_own_code() -> None:
    codes = [kind.code for kind in _ALL]
    assert len(codes) == len(set(codes))


def test_every_error_belongs_to_one_family() -> None:
    broker_s = (errors.RequestError, errors.BusyError, errors.StorageError, errors.CorruptionError)
    families = (*broker_s, errors.UnreachableError)
    for kind in _ALL:
        if kind is not errors.TidemillError:
            assert sum(issubclass(kind, family) for family in families) == 1, kind


def test_every_error_comes_back_from_its_code_and_words() -> None:
    for kind in _ALL:
        error = error_of(kind.code, "what was wrong")
        assert (type(error), str(error)) == (kind, "what was wrong")
