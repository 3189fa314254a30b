"""Every error Tidemill raises on purpose, grouped by who must act.

`RequestError`     the caller: the request itself is wrong; nothing was written.
`BusyError`        the caller, later: retry; nothing was written (but see `PartlyStoredError`).
`StorageError`     the operator: the machine or the directory needs attention.
`CorruptionError`  the operator: bytes on disk are not what was written.
`UnreachableError` raised by a client only: no broker answered.

Each class has a stable `code` that the endpoints translate; the message says what was wrong and what to do.
Bugs are asserts, not errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized

__all__ = [
    "AlreadyReleasedError",
    "BodyTooLargeError",
    "BrokerClosedError",
    "BusyError",
    "CorruptionError",
    "DamagedFrameError",
    "DirectoryLockedError",
    "DiskError",
    "DiskFullError",
    "EmptyBodyError",
    "ForbiddenError",
    "IdInUseError",
    "IllegalDelayError",
    "IllegalFilterError",
    "IllegalGroupError",
    "IllegalHandleError",
    "IllegalIdError",
    "IllegalKeyError",
    "IllegalLeaseError",
    "IllegalLevelError",
    "IllegalMessageGroupError",
    "IllegalPropertyError",
    "IllegalRequestIdError",
    "IllegalTagError",
    "IllegalTopicError",
    "InvalidAckTokenError",
    "MalformedRequestError",
    "NewerFormatError",
    "PartlyStoredError",
    "PropertiesTooLargeError",
    "RequestError",
    "RequestIdReusedError",
    "StorageError",
    "SyncFailedError",
    "TidemillError",
    "TooManyRequestsError",
    "TopicExistsError",
    "TopicInUseError",
    "UnauthorizedError",
    "UnknownMessageError",
    "UnknownTopicError",
    "UnknownTransactionError",
    "UnreachableError",
    "WrongMessageTypeError",
]


class TidemillError(Exception):
    """Base of all errors raised on purpose."""

    code = "error"


class RequestError(TidemillError):
    """The caller's request is wrong. Nothing was written."""

    code = "bad-request"


class IllegalTopicError(RequestError):
    code = "illegal-topic"


class IllegalTagError(RequestError):
    code = "illegal-tag"


class IllegalKeyError(RequestError):
    code = "illegal-key"


class IllegalPropertyError(RequestError):
    code = "illegal-property"


class PropertiesTooLargeError(IllegalPropertyError):
    """Too many properties, or too many bytes of them."""

    code = "properties-too-large"


class IllegalGroupError(RequestError):
    code = "illegal-group"


class IllegalMessageGroupError(IllegalGroupError):
    """The FIFO group of a message, not a consumer group."""

    code = "illegal-message-group"


class IllegalIdError(RequestError):
    code = "illegal-id"


class IdInUseError(RequestError):
    """Another message in the topic has this id; a repeat must have the same content."""

    code = "id-in-use"


class IllegalLevelError(RequestError):
    code = "illegal-level"


class IllegalDelayError(RequestError):
    code = "illegal-delay"


class BodyTooLargeError(RequestError):
    code = "body-too-large"


class EmptyBodyError(RequestError):
    code = "empty-body"


class WrongMessageTypeError(RequestError):
    code = "wrong-message-type"


class MalformedRequestError(RequestError):
    """The request contradicts itself or cannot be read."""

    code = "malformed"


class IllegalFilterError(RequestError):
    code = "illegal-filter"


class IllegalLeaseError(RequestError):
    code = "illegal-invisibility"


class UnknownTransactionError(RequestError):
    code = "unknown-transaction"


class UnknownTopicError(RequestError):
    code = "unknown-topic"


class TopicExistsError(RequestError):
    code = "topic-exists"


class TopicInUseError(RequestError):
    code = "topic-in-use"


class IllegalHandleError(RequestError):
    code = "illegal-handle"


class IllegalRequestIdError(RequestError):
    code = "illegal-request-id"


class RequestIdReusedError(RequestError):
    """Another request with this request id was carried out within the last hour."""

    code = "request-id-reused"


class InvalidAckTokenError(RequestError):
    """The token is not, or no longer, the one that settles its delivery."""

    code = "invalid-receipt"


class AlreadyReleasedError(RequestError):
    code = "already-released"


class UnknownMessageError(RequestError):
    code = "unknown-message"


class UnauthorizedError(RequestError):
    """No credentials, wrong ones, or a signature that is too old."""

    code = "unauthorized"


class ForbiddenError(RequestError):
    """The user is authenticated and lacks the permission."""

    code = "forbidden"


class UnreachableError(TidemillError):
    """No broker answered a client in time; the message says whether the request may have taken effect."""

    code = "unreachable"


class BusyError(TidemillError):
    """Retry later. Nothing was written."""

    code = "busy"


class TooManyRequestsError(BusyError):
    code = "too-many-requests"


class DiskFullError(BusyError):
    """Sends are refused until there is space again; releases and cancels continue."""

    code = "disk-full"


class PartlyStoredError(DiskFullError):
    """The disk became full while a table was stored: `stored` has the answers of its first rows."""

    code = "partly-stored"

    def __init__(self, message: str, stored: Sized = ()) -> None:
        super().__init__(message)
        self.stored = stored


class StorageError(TidemillError):
    """The directory or the machine needs attention."""

    code = "storage"


class DiskError(StorageError):
    """The operating system failed or refused an operation on a file; a retry may succeed."""

    code = "disk-error"


class DirectoryLockedError(StorageError):
    code = "directory-locked"


class NewerFormatError(StorageError):
    code = "newer-format"


class SyncFailedError(StorageError):
    """A sync failed: what is on disk is not known, so the broker stops."""

    code = "sync-failed"


class BrokerClosedError(StorageError):
    code = "closed"


class CorruptionError(TidemillError):
    """Bytes on disk differ from what was written."""

    code = "corrupt"


class DamagedFrameError(CorruptionError):
    """A frame of the commit log fails its checksum; its messages are not delivered."""

    code = "damaged"

    def __init__(self, message: str, path: str = "", offset: int = 0, position: int = 0) -> None:
        super().__init__(message)
        self.path, self.offset, self.position = path, offset, position

    @classmethod
    def at(cls, path: str, offset: int, position: int) -> DamagedFrameError:
        """The frame at an offset of the log, which is a position in one of its files."""
        message = (
            f"{path}: the frame at offset {offset} of the log (byte {position} of the file) is damaged; its "
            "messages are not delivered. `tidemill damaged` lists them"
        )
        return cls(message, path, offset, position)


def _with_subclasses(kind: type[TidemillError]) -> Iterator[type[TidemillError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _with_subclasses(child)


def error_of(code: str, message: str) -> TidemillError:
    """The error that a code and a message stand for, on the other side of a wire.

    An unknown code, of a newer broker, gives a `TidemillError` that names it.
    """
    for kind in _with_subclasses(TidemillError):
        if kind.code == code:
            return kind(message)
    return TidemillError(f"{code}: {message}")
