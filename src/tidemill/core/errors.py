"""Every error Tidemill raises on purpose, grouped by who must act.

`RequestError`     the caller: the request itself is wrong; nothing was written.
`BusyError`        the caller, later: retry; nothing was written (but see `PartlyStored`).
`StorageError`     the operator: the machine or the directory needs attention.
`CorruptionError`  the operator: bytes on disk are not what was written.

Each class has a stable `code` that the endpoints translate; the message says what was wrong and what to do.
Bugs are asserts, not errors.
"""

from __future__ import annotations

from collections.abc import Sized


class TidemillError(Exception):
    """Base of all errors raised on purpose."""

    code = "error"


class RequestError(TidemillError):
    """The caller's request is wrong. Nothing was written."""

    code = "bad-request"


class IllegalTopic(RequestError):
    code = "illegal-topic"


class IllegalTag(RequestError):
    code = "illegal-tag"


class IllegalKey(RequestError):
    code = "illegal-key"


class IllegalProperty(RequestError):
    code = "illegal-property"


class PropertiesTooLarge(IllegalProperty):
    """Too many properties, or too many bytes of them."""

    code = "properties-too-large"


class IllegalGroup(RequestError):
    code = "illegal-group"


class IllegalMessageGroup(IllegalGroup):
    """Of a message (the order it belongs to), not of consumers."""

    code = "illegal-message-group"


class IllegalId(RequestError):
    code = "illegal-id"


class IdInUse(RequestError):
    """The id is that of another message in the topic: the same id must come with the same content."""

    code = "id-in-use"


class IllegalLevel(RequestError):
    code = "illegal-level"


class IllegalDelay(RequestError):
    code = "illegal-delay"


class BodyTooLarge(RequestError):
    code = "body-too-large"


class EmptyBody(RequestError):
    code = "empty-body"


class WrongMessageType(RequestError):
    code = "wrong-message-type"


class MalformedRequest(RequestError):
    """The request contradicts itself or cannot be read."""

    code = "malformed"


class IllegalFilter(RequestError):
    code = "illegal-filter"


class IllegalInvisibility(RequestError):
    code = "illegal-invisibility"


class UnknownTransaction(RequestError):
    code = "unknown-transaction"


class UnknownTopic(RequestError):
    code = "unknown-topic"


class TopicExists(RequestError):
    code = "topic-exists"


class TopicInUse(RequestError):
    code = "topic-in-use"


class IllegalHandle(RequestError):
    code = "illegal-handle"


class IllegalRequestId(RequestError):
    code = "illegal-request-id"


class RequestIdReused(RequestError):
    """Another request was carried out under this request id within the last hour."""

    code = "request-id-reused"


class InvalidReceipt(RequestError):
    """The receipt is not, or no longer, the one that settles its delivery."""

    code = "invalid-receipt"


class AlreadyReleased(RequestError):
    code = "already-released"


class UnknownMessage(RequestError):
    code = "unknown-message"


class Unauthorized(RequestError):
    """Who asks is not known: no credentials, wrong ones, or a signature that is too old."""

    code = "unauthorized"


class Forbidden(RequestError):
    """Who asks is known, and may not do this."""

    code = "forbidden"


class BusyError(TidemillError):
    """Try again later. Nothing was written."""

    code = "busy"


class TooManyRequests(BusyError):
    code = "too-many-requests"


class DiskFull(BusyError):
    """Sends are refused until there is space again; releases and cancels go on."""

    code = "disk-full"


class PartlyStored(DiskFull):
    """A table met a full disk midway: `receipt` answers for its first rows, which are stored."""

    code = "partly-stored"

    def __init__(self, message: str, receipt: Sized = ()) -> None:
        super().__init__(message)
        self.receipt = receipt


class StorageError(TidemillError):
    """The directory or the machine needs attention."""

    code = "storage"


class DiskError(StorageError):
    """The operating system failed or refused an operation on a file; it may do better later."""

    code = "disk-error"


class DirectoryLocked(StorageError):
    code = "directory-locked"


class NewerFormat(StorageError):
    code = "newer-format"


class SyncFailed(StorageError):
    """A sync failed: what is on disk is not known, so the broker stops."""

    code = "sync-failed"


class BrokerClosed(StorageError):
    code = "closed"


class CorruptionError(TidemillError):
    """Bytes on disk are not what was written."""

    code = "corrupt"


class DamagedFrame(CorruptionError):
    """A frame of the commit log does not read back; its messages are not delivered."""

    code = "damaged"

    def __init__(self, message: str, path: str = "", offset: int = 0, position: int = 0) -> None:
        super().__init__(message)
        self.path, self.offset, self.position = path, offset, position

    @classmethod
    def at(cls, path: str, offset: int, position: int) -> DamagedFrame:
        """The frame at an offset of the log, which is a position in one of its files."""
        message = (
            f"{path}: the frame at offset {offset} of the log (byte {position} of the file) is damaged; its "
            "messages are not delivered. `tidemill damaged` lists them"
        )
        return cls(message, path, offset, position)
