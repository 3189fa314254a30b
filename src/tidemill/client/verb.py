"""Verbs that are written once and belong to both clients: `Client` calls them, `AsyncClient` awaits them.

A verb is an `async def` of a class that is generic over how its clients wait. What it awaits blocks in a
client that is `Blocking`, so there its coroutine runs to the end without an event loop, in one step; in a
client that is `Awaiting` it is an ordinary coroutine. A type checker sees `client.cancel(handle)` as the
answer and `async_client.cancel(handle)` as a coroutine of it.

Invariant: what a blocking client awaits never suspends.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import wraps
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from tidemill.client.operations import Operations

K = TypeVar("K")
P = ParamSpec("P")
T = TypeVar("T")


class Blocking:
    """Marks a client whose verbs return their answers."""


class Awaiting:
    """Marks a client whose verbs are awaited."""


class Caller(Generic[K]):
    """Has verbs: a client, or a namespace of one."""

    _awaits: bool
    _operations: Operations


class Namespace(Caller[K]):
    """Verbs of a client that are used less often, under a name of their own."""

    def __init__(self, client: Caller[K]) -> None:
        self._awaits = client._awaits
        self._operations = client._operations


class Verb(Generic[P, T]):
    """A method that is written as `async def`, and returns its answer where the client is blocking."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        @wraps(steps)
        def blocking(*args: Any, **given: Any) -> T:
            return finished(steps(*args, **given))

        self._steps, self._blocking = steps, blocking
        self.__doc__ = steps.__doc__

    @overload
    def __get__(self, caller: Caller[Blocking], kind: Any = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, caller: Caller[Awaiting], kind: Any = None) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, caller: None, kind: Any = None) -> Callable[..., Any]: ...
    def __get__(self, caller: Caller[Any] | None, kind: Any = None) -> Callable[..., Any]:
        return _bound(self._steps, self._blocking, caller)


class Stream(Generic[P, T]):
    """A method that is written as an asynchronous generator, and an iterator where the client is blocking."""

    def __init__(self, items: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> None:
        @wraps(items)
        def blocking(*args: Any, **given: Any) -> Iterator[T]:
            return _iterated(items(*args, **given))  # type: ignore[arg-type]

        self._items, self._blocking = items, blocking
        self.__doc__ = items.__doc__

    @overload
    def __get__(self, caller: Caller[Blocking], kind: Any = None) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, caller: Caller[Awaiting], kind: Any = None) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, caller: None, kind: Any = None) -> Callable[..., Any]: ...
    def __get__(self, caller: Caller[Any] | None, kind: Any = None) -> Callable[..., Any]:
        return _bound(self._items, self._blocking, caller)


def _bound(
    awaited: Callable[..., Any], blocking: Callable[..., Any], caller: Caller[Any] | None
) -> Callable[..., Any]:
    if caller is None:  # of the class, for `help` and `inspect`
        return blocking
    return MethodType(awaited if caller._awaits else blocking, caller)


def finished(steps: Coroutine[Any, Any, T] | Awaitable[T]) -> T:
    """The result of a coroutine that does not suspend."""
    try:
        steps.send(None)  # type: ignore[union-attr]
    except StopIteration as end:
        answer: T = end.value
        return answer
    raise AssertionError("a coroutine of a blocking client was suspended")


def _iterated(items: AsyncGenerator[T, None]) -> Iterator[T]:
    try:
        while True:
            try:
                item = finished(items.__anext__())
            except StopAsyncIteration:
                return
            yield item
    finally:
        finished(items.aclose())
