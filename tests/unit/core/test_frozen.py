"""Frozen values made quickly: in everything but speed they are dataclasses."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from inspect import signature
from typing import Any

import pytest

from tidemill.core.frozen import frozen
from tidemill.core.model import Draft


@frozen
class Quick:
    """A value."""

    a: int
    b: str = "b"
    c: list[int] = field(default_factory=list)

    def doubled(self) -> int:
        return 2 * self.a


@dataclass(frozen=True, slots=True)
class Plain:
    """A value."""

    a: int
    b: str = "b"
    c: list[int] = field(default_factory=list)


@pytest.mark.parametrize("arguments", [{"a": 1}, {"a": 1, "b": "x"}, {"a": 1, "c": [2]}])
def test_it_holds_what_the_dataclass_would_hold(arguments: dict[str, Any]) -> None:
    quick, plain = Quick(**arguments), Plain(**arguments)
    assert [getattr(quick, f.name) for f in fields(Quick)] == [getattr(plain, f.name) for f in fields(Plain)]
    assert repr(quick) == repr(plain).replace("Plain", "Quick")
    assert quick == Quick(**arguments) != Quick(2)
    assert quick.doubled() == 2


def test_it_is_made_as_the_dataclass_says() -> None:
    assert str(signature(Quick)) == str(signature(Plain))


def test_each_has_a_default_of_its_own() -> None:
    assert Quick(1).c is not Quick(1).c


def test_it_is_frozen_and_has_no_room_for_more() -> None:
    value = Quick(1)
    with pytest.raises(FrozenInstanceError):
        value.a = 2  # type: ignore[misc]
    with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
        value.other = 2  # type: ignore[attr-defined]
    assert type(value) is Quick


@pytest.mark.parametrize("arguments", [(), (1, 2, 3, 4)])
def test_wrong_arguments_are_refused(arguments: tuple[int, ...]) -> None:
    with pytest.raises(TypeError):
        Quick(*arguments)


def test_it_can_be_changed_copied_and_pickled() -> None:
    draft = Draft("orders", b"x", id="a", keys=("k",), properties={"p": "v"})
    assert replace(draft, id="b") == Draft("orders", b"x", id="b", keys=("k",), properties={"p": "v"})
    assert copy.copy(draft) == draft == copy.deepcopy(draft) == pickle.loads(pickle.dumps(draft))


def test_a_class_derived_from_it_is_filled_as_well() -> None:
    class Watched(Quick):
        __slots__ = ("__weakref__",)

    assert Watched(1, c=[3]).c == [3]
    assert Watched(1).b == "b"
    assert type(Watched(1)) is Watched
