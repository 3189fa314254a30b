"""Authentication: the permissions file, read again whenever it changes; users by token or by signature.

Owns the file's path and the last valid version. A file that cannot be read, or is invalid, changes nothing:
the old permissions stay in force, and one line in the log gives the reason. A broker that restarts with such
a file has no old ones: it refuses all calls until the file is valid, and still releases what falls due.
"""

from __future__ import annotations

import hmac
import logging
import os
import threading
from pathlib import Path

from tidemill.core.clock import Clock, SystemClock, stopwatch_s
from tidemill.core.errors import RequestError, UnauthorizedError
from tidemill.server.process.serve_plan import ServePlan
from tidemill.server.security.permissions import NO_USERS, Permissions, User, hash_of, parse_permissions
from tidemill.server.security.signatures import user_of

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_BEARER = "bearer"
_Stamp = tuple[int, int, int]


class Authority:
    """Answers who a caller is. Thread-safe."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None = None,
        look_every_s: float = _LOOK_EVERY_S,
        must_be_right: bool = True,
    ) -> None:
        # Signatures carry the real time, also where the broker's clock is simulated.
        self._clock = clock or SystemClock()
        self._path = path
        self._look_every_s = look_every_s
        self._looked_s = stopwatch_s()
        self._looking = threading.Lock()  # the holder reads the file; the others do not wait
        self._stamp: _Stamp | None = None
        self._permissions = NO_USERS
        try:
            self._stamp, self._permissions = read_permissions(path)
        except RequestError as error:
            if must_be_right:
                raise
            logger.error("all calls are refused until the permissions file is valid: %s", error)
        else:
            if os.stat(path).st_mode & 0o077:
                logger.warning("%s is readable by other users of this machine; run chmod 600 on it", path)

    def user_of_signature(self, authorization: str, date_time: str) -> User:
        """The user of a RocketMQ client, by its headers `authorization` and `x-mq-date-time`."""
        return user_of(self._current(), authorization, date_time, self._clock.now_ms())

    def user_of_token(self, authorization: str) -> User:
        """The user of an HTTP or Flight call, by its header `authorization: Bearer TOKEN`."""
        scheme, _, token = authorization.strip().partition(" ")
        if scheme.lower() != _BEARER or not token.strip():
            raise UnauthorizedError(
                "authentication required; send the header Authorization: Bearer TOKEN (the command line "
                "takes it from TIDEMILL_TOKEN, the Python client as token=)"
            )
        hashed = hash_of(token.strip())
        user = self._current().by_token_hash.get(hashed)
        if user is None or not hmac.compare_digest(user.token_hash, hashed):
            raise UnauthorizedError("unknown token; use one that the permissions file of the broker names")
        return user

    def _current(self) -> Permissions:
        now_s = stopwatch_s()
        if now_s - self._looked_s >= self._look_every_s and self._looking.acquire(blocking=False):
            try:
                self._looked_s = now_s
                self._look()
            finally:
                self._looking.release()
        return self._permissions

    def _look(self) -> None:
        """Read the file again if it is another one."""
        try:
            stamp = _stamp_of(self._path)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            self._permissions = parse_permissions(self._path.read_text())
        except (OSError, UnicodeDecodeError, RequestError) as error:
            if not isinstance(error, OSError) or self._stamp is not None:
                logger.error("the permissions stay as they were: %s: %s", self._path, _reason(error))
            if isinstance(error, OSError):
                self._stamp = None  # logged once, and read again as soon as it is back
        else:
            logger.warning("permissions read again from %s", self._path)


def authority_of(plan: ServePlan) -> Authority | None:
    """The authority of a plan; None: authentication is off."""
    if not plan.auth_file:
        return None
    return Authority(Path(plan.auth_file), must_be_right=not plan.is_again)


def read_permissions(path: Path) -> tuple[_Stamp, Permissions]:
    """The file's content; `RequestError` in one line if it cannot be used."""
    try:
        return _stamp_of(path), parse_permissions(path.read_text())
    except (OSError, UnicodeDecodeError, RequestError) as error:
        raise RequestError(f"cannot use the permissions file {path}: {_reason(error)}") from None


def _stamp_of(path: Path) -> _Stamp:
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"  # its own text would quote the file
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
