"""Splits items into parts that are bounded by count and by bytes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def split(
    items: Iterable[T], count_max: int, bytes_max: int = 0, size_of: Callable[[T], int] | None = None
) -> Iterator[list[T]]:
    """Parts in order, each as large as the bounds allow; an item over `bytes_max` is a part of its own.

    Without `size_of` only the count is bounded. Takes no more items than the part in progress needs.
    """
    part: list[T] = []
    total = 0
    for item in items:
        size = 0 if size_of is None else size_of(item)
        if part and (len(part) >= count_max or total + size > bytes_max):
            yield part
            part, total = [], 0
        part.append(item)
        total += size
    if part:
        yield part


def first_part(
    items: Iterable[T], count_max: int, bytes_max: int = 0, size_of: Callable[[T], int] | None = None
) -> list[T]:
    """The first of these parts; empty where there are no items."""
    return next(split(items, count_max, bytes_max, size_of), [])
