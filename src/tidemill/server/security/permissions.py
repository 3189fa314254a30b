"""The permissions file: the users, and what each may do with which topics and groups.

Owns the file's format (TOML, see docs/security.md) and the check "may this user do that". Everything is
validated when the file is read, so that a mistake is reported at once and in one line.

Invariant: no text that comes from here holds a secret: neither `repr` nor an error shows a key or a token.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import translate
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidemill.core.durations import parse_duration_ms
from tidemill.core.errors import ForbiddenError, RequestError

SKEW_MS = 5 * 60_000
_ALL = "*"
_SECRET_CHARS_MIN = 8


class Verb(StrEnum):
    """What there is to be allowed."""

    SEND = "send"
    RECEIVE = "receive"
    CANCEL = "cancel"  # and reschedule
    LOOK = "look"  # pending, forecast, status, metrics, finding and reading messages
    ADMIN = "admin"  # make, change and delete topics and groups, move the clock, back up


class Patterns:
    """Names by shell patterns: `orders`, `orders-*`, `*`."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(patterns)
        self.is_all = _ALL in self._patterns
        self._matches = re.compile("|".join(map(translate, self._patterns)) or r"(?!)").match

    def __contains__(self, name: str) -> bool:
        return self._matches(name) is not None

    def __repr__(self) -> str:
        return f"Patterns({list(self._patterns)})"


@dataclass(frozen=True, slots=True)
class Rule:
    """Some verbs on some topics and groups."""

    verbs: frozenset[Verb]
    topics: Patterns
    groups: Patterns

    def allows(self, verb: Verb, topic: str | None, group: str | None) -> bool:
        return (
            verb in self.verbs
            and (topic is None or topic in self.topics)
            and (group is None or group in self.groups)
        )


@dataclass(frozen=True, slots=True)
class User:
    """A user with permissions."""

    name: str
    rules: tuple[Rule, ...]
    access_key: str = ""
    secret_key: bytes = field(default=b"", repr=False)
    token_hash: bytes = field(default=b"", repr=False)

    def may(self, verb: Verb, *, topic: str | None = None, group: str | None = None) -> bool:
        return any(rule.allows(verb, topic, group) for rule in self.rules)

    def may_everywhere(self, verb: Verb) -> bool:
        return any(verb in rule.verbs and rule.topics.is_all for rule in self.rules)

    def require(self, verb: Verb, *, topic: str | None = None, group: str | None = None) -> None:
        """Return if the user may; `ForbiddenError` if not."""
        refusal = self.refusal(verb, topic=topic, group=group)
        if refusal is not None:
            raise refusal

    def refusal(
        self, verb: Verb, *, topic: str | None = None, group: str | None = None
    ) -> ForbiddenError | None:
        """Why the user may not; None if it may."""
        if self.may(verb, topic=topic, group=group):
            return None
        where = "" if topic is None else f" on topic {topic!r}"
        whom = "" if group is None else f" as group {group!r}"
        return ForbiddenError(
            f"user {self.name!r} may not {verb}{where}{whom}; the permissions file must allow it"
        )

    def refusal_to_send(self, topic: str, *, replaces: bool) -> ForbiddenError | None:
        """The same for a send. Replacing moves a pending message of any sender, as reschedule does."""
        refusal = self.refusal(Verb.SEND, topic=topic)
        if refusal is None and replaces and not self.may(Verb.CANCEL, topic=topic):
            return ForbiddenError(
                f"user {self.name!r} may not replace messages that wait in topic {topic!r}; the permissions "
                f"file must allow {Verb.CANCEL} too"
            )
        return refusal

    def require_everywhere(self, verb: Verb) -> None:
        if not self.may_everywhere(verb):
            raise ForbiddenError(
                f"user {self.name!r} may not {verb} on all topics; name one that is allowed, or let the "
                f"permissions file allow {verb} on all"
            )

    def require_any(self, topic: str) -> None:
        """Return if the user may do anything at all with a topic."""
        if not any(topic in rule.topics for rule in self.rules):
            raise ForbiddenError(
                f"user {self.name!r} may do nothing with topic {topic!r}; the permissions file must allow it"
            )


@dataclass(frozen=True, slots=True)
class Permissions:
    """The file, read."""

    by_access_key: Mapping[str, User] = field(repr=False)
    by_token_hash: Mapping[bytes, User] = field(repr=False)
    skew_ms: int = SKEW_MS
    zones: tuple[ZoneInfo, ...] = ()  # where clients' clocks may stand; empty: anywhere


NO_USERS = Permissions({}, {})


def hash_of(token: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def parse_permissions(text: str) -> Permissions:
    """The permissions of a file's text; `RequestError` if it is invalid."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RequestError(f"it is not TOML: {_without_values(str(error))}") from None
    _refuse_unknown("the file", content, {"users", "signatures"})
    users = [_user(name, table) for name, table in _table("users", content.get("users", {})).items()]
    if not users:
        raise RequestError("it names no user; write at least one table [users.NAME]")
    _refuse_twice("access key", [user.access_key for user in users if user.access_key])
    _refuse_twice("token", [user.token_hash for user in users if user.token_hash])
    signatures = _table("signatures", content.get("signatures", {}))
    _refuse_unknown("signatures", signatures, {"skew", "time_zones"})
    return Permissions(
        {user.access_key: user for user in users if user.access_key},
        {user.token_hash: user for user in users if user.token_hash},
        parse_duration_ms(str(signatures.get("skew", "5m"))),
        tuple(map(_zone, _texts("signatures.time_zones", signatures.get("time_zones", [])))),
    )


def _user(name: str, value: Any) -> User:
    where = f"users.{name}"
    table = _table(where, value)
    _refuse_unknown(where, table, {"access_key", "secret_key", "token", "allow"})
    access_key, secret_key, token = (
        _text(f"{where}.{key}", table.get(key, "")) for key in ("access_key", "secret_key", "token")
    )
    if bool(access_key) != bool(secret_key):
        raise RequestError(f"{where}: an access_key goes with a secret_key")
    if not access_key and not token:
        raise RequestError(f"{where}: give access_key and secret_key for gRPC, a token for HTTP, or both")
    for key, secret in (("secret_key", secret_key), ("token", token)):
        if secret and len(secret) < _SECRET_CHARS_MIN:
            raise RequestError(f"{where}.{key}: use at least {_SECRET_CHARS_MIN} characters")
    allow = table.get("allow", [])
    if not isinstance(allow, list):
        raise RequestError(f"{where}.allow: write it as [[users.{name}.allow]]")
    return User(
        name,
        tuple(_rule(f"{where}.allow", rule) for rule in allow),
        access_key,
        secret_key.encode(),
        hash_of(token) if token else b"",
    )


def _rule(where: str, value: Any) -> Rule:
    table = _table(where, value)
    _refuse_unknown(where, table, {"verbs", "topics", "groups"})
    words = _texts(f"{where}.verbs", table.get("verbs", []))
    try:
        verbs = frozenset(Verb) if _ALL in words else frozenset(map(Verb, words))
    except ValueError:
        raise RequestError(f"{where}.verbs: known are {', '.join(Verb)} and *") from None
    topics, groups = (_texts(f"{where}.{key}", table.get(key, [])) for key in ("topics", "groups"))
    return Rule(verbs, Patterns(topics), Patterns(groups))


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise RequestError(f"signatures.time_zones: {name!r} is not a time zone") from None


def _table(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(f"{where} must be a table")
    return value


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{where} must be a text in quotes")
    return value


def _texts(where: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RequestError(f"{where} must be a list of texts")
    return value


def _refuse_unknown(where: str, table: Mapping[str, Any], known: set[str]) -> None:
    if unknown := set(table) - known:
        raise RequestError(f"{where}: {sorted(unknown)} is unknown; known are {sorted(known)}")


def _refuse_twice(what: str, values: list[Any]) -> None:
    if len(set(values)) < len(values):
        raise RequestError(f"two users have the same {what}")


def _without_values(message: str) -> str:
    """Where a TOML error is, without what stands there: that may be a secret."""
    found = re.search(r"\(at line \d+, column \d+\)|\(at end of document\)", message)
    return found.group(0).strip("()") if found else "its form is wrong"
