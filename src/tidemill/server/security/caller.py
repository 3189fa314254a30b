"""The current user: who made the request in progress, available to everything that serves it.

Owns one context variable, set by the guard for every request and inherited by the threads that work for it.
Without authentication there is no user, and everything is allowed.
"""

from __future__ import annotations

from contextvars import ContextVar

from tidemill.broker.send.admission import DEAD_LETTER_PREFIX, RETRY_PREFIX
from tidemill.server.security.permissions import User, Verb

_caller: ContextVar[User | None] = ContextVar("tidemill_caller", default=None)

SEND, RECEIVE, CANCEL, LOOK, ADMIN = Verb.SEND, Verb.RECEIVE, Verb.CANCEL, Verb.LOOK, Verb.ADMIN


def set_caller(user: User | None) -> None:
    _caller.set(user)


def caller() -> User | None:
    return _caller.get()


def own(name: str) -> str:
    """What a caller names for itself (a client, an attempt), separate from other users' of that name."""
    user = _caller.get()
    return name if user is None else f"{user.name} {name}"


def may(verb: Verb, *, topic: str | None = None, group: str | None = None) -> bool:
    user = _caller.get()
    return user is None or user.may(verb, topic=topic, group=group)


def may_everywhere(verb: Verb) -> bool:
    user = _caller.get()
    return user is None or user.may_everywhere(verb)


def may_compare(group: str, topic: str) -> bool:
    """Whether the caller may look at how far a group is with a topic. A group's own topics go with it."""
    is_own = topic in (RETRY_PREFIX + group, DEAD_LETTER_PREFIX + group)
    return may(LOOK, group=group) and (is_own or may(LOOK, topic=topic))


def require(verb: Verb, *, topic: str | None = None, group: str | None = None) -> None:
    """Return if the caller may; `ForbiddenError` if not."""
    user = _caller.get()
    if user is not None:
        user.require(verb, topic=topic, group=group)


def require_send(topic: str, *, replaces: bool) -> None:
    """Return if the caller may send to a topic, in place of a message that waits there if `replaces`."""
    user = _caller.get()
    refusal = None if user is None else user.refusal_to_send(topic, replaces=replaces)
    if refusal is not None:
        raise refusal


def require_on(verb: Verb, topic: str | None) -> None:
    """The same for one topic, or for all of them where none is named."""
    user = _caller.get()
    if user is not None:
        if topic is None:
            user.require_everywhere(verb)
        else:
            user.require(verb, topic=topic)


def require_any(topic: str) -> None:
    """Return if the caller may do anything with a topic."""
    user = _caller.get()
    if user is not None:
        user.require_any(topic)
