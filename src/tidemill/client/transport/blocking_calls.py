"""Runs blocking calls in threads of their own, so that an event loop goes on.

Not in the loop's default thread pool: that is the program's, is needed to resolve host names, and must be
empty before the program can end. These are not waited for: a call whose task was cancelled, or whose loop has
ended, ends alone, or with the program.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from tidemill.core.errors import UnreachableError

T = TypeVar("T")


async def in_own_thread(act: Callable[..., T], *args: Any) -> T:
    """What a call returns or raises."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    thread = threading.Thread(target=_run, args=(loop, answer, act, args), name="tidemill-table", daemon=True)
    thread.start()
    try:
        return await answer
    finally:
        del answer  # and with it what it raises, which holds this frame


def _run(
    loop: asyncio.AbstractEventLoop, answer: asyncio.Future[T], act: Callable[..., T], args: tuple[Any, ...]
) -> None:
    settle: Callable[[Any], None]
    what: Any
    try:
        settle, what = answer.set_result, act(*args)
    except BaseException as error:
        settle, what = answer.set_exception, error
    with suppress(RuntimeError):  # the loop has ended: no task waits for it
        loop.call_soon_threadsafe(_settle, answer, settle, what)
    del answer, settle, what  # what was raised holds this frame


def _settle(answer: asyncio.Future[Any], settle: Callable[[Any], None], what: Any) -> None:
    if not answer.done():  # else its task was cancelled
        settle(what)


def on_the_loop(loop: asyncio.AbstractEventLoop | None, step: Coroutine[Any, Any, T]) -> T:
    """Have an event loop take a step, and wait for what comes of it. In a thread of its own."""
    if loop is None or loop.is_closed():
        step.close()
        raise UnreachableError("the event loop of this client has ended")
    return asyncio.run_coroutine_threadsafe(step, loop).result()
