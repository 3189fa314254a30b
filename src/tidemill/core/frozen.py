"""Frozen dataclasses with slots whose instances are made quickly, for values that every message needs one of.

A frozen dataclass sets each field by a call of its own, because its instances refuse to be set: 2 µs for the
twelve of a draft. Here an instance is filled while it belongs to an open twin of the class, with the same
slots, and is frozen by becoming one of the class itself: a third of that. Everything else is the dataclass's.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, field, fields
from inspect import signature
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")

_INDENT = "\n    "


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """`dataclass(frozen=True, slots=True)`, for a class without bases and `__post_init__`.

    A class derived from it has other slots, and is filled as any dataclass is.
    """
    made: Any = dataclass(frozen=True, slots=True)(cls)
    assert made.__bases__ == (object,) and not hasattr(made, "__post_init__")
    known: dict[str, Any] = {
        "_frozen": made,
        "_open": type(f"_Open{made.__name__}", (), {"__slots__": made.__slots__}),
        "_become": object.__dict__["__class__"].__set__,
        "_filled": made.__init__,
        "_missing": MISSING,
        "_type": type,
    }
    names = ", ".join(each.name for each in fields(made))
    arguments = ["self"]
    lines = []
    for each in fields(made):
        arguments.append(_argument(each, known))
        if each.default_factory is not MISSING:
            lines.append(f"if {each.name} is _missing: {each.name} = _factory_{each.name}()")
    lines.append(f"if _type(self) is not _frozen: return _filled(self, {names})")
    lines.append("_become(self, _open)")
    lines += [f"self.{each.name} = {each.name}" for each in fields(made)]
    lines.append("self.__class__ = _frozen")
    exec(f"def __init__({', '.join(arguments)}):{_INDENT}{_INDENT.join(lines)}", known)
    made.__signature__ = signature(made)  # as people know it, with the defaults it says
    init = known["__init__"]
    init.__qualname__ = f"{made.__qualname__}.__init__"
    init.__annotations__ = made.__init__.__annotations__
    made.__init__ = init
    return made  # type: ignore[no-any-return]


def _argument(each: Field[Any], known: dict[str, Any]) -> str:
    """A field as an argument, its default among what is known."""
    if each.default is not MISSING:
        known[f"_default_{each.name}"] = each.default
        return f"{each.name}=_default_{each.name}"
    if each.default_factory is not MISSING:
        known[f"_factory_{each.name}"] = each.default_factory
        return f"{each.name}=_missing"
    return each.name
