"""Maps errors to RocketMQ: one table from `TidemillError.code` to its `Code`.

Clients act on the number (see the notes on each); the text of a status begins with the code's name, because
people and tests look for it there.
"""

from __future__ import annotations

from typing import Any

from tidemill.core.errors import TidemillError
from tidemill.server.grpc.protocol import Code, definition
from tidemill.server.rejects import REJECTS

_CODES: dict[str, int] = {
    "bad-request": Code.BAD_REQUEST,
    "illegal-topic": Code.ILLEGAL_TOPIC,
    "illegal-tag": Code.ILLEGAL_MESSAGE_TAG,
    "illegal-key": Code.ILLEGAL_MESSAGE_KEY,
    "illegal-property": Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
    "properties-too-large": Code.MESSAGE_PROPERTIES_TOO_LARGE,
    "illegal-message-group": Code.ILLEGAL_MESSAGE_GROUP,
    "illegal-group": Code.ILLEGAL_CONSUMER_GROUP,
    "illegal-id": Code.ILLEGAL_MESSAGE_ID,
    "id-in-use": Code.BAD_REQUEST,  # not over gRPC, whose ids are made by libraries
    "illegal-level": Code.ILLEGAL_DELIVERY_TIME,
    "illegal-delay": Code.ILLEGAL_DELIVERY_TIME,
    "illegal-filter": Code.ILLEGAL_FILTER_EXPRESSION,
    "illegal-invisibility": Code.ILLEGAL_INVISIBLE_TIME,
    "illegal-handle": Code.BAD_REQUEST,
    "invalid-receipt": Code.INVALID_RECEIPT_HANDLE,  # push clients give up on this one alone
    "body-too-large": Code.MESSAGE_BODY_TOO_LARGE,
    "empty-body": Code.MESSAGE_BODY_EMPTY,
    "wrong-message-type": Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    "malformed": Code.MESSAGE_CORRUPTED,
    "unknown-topic": Code.TOPIC_NOT_FOUND,
    "unknown-transaction": Code.INVALID_TRANSACTION_ID,
    "unknown-message": Code.NOT_FOUND,  # not MESSAGE_NOT_FOUND: clients take that for success
    "already-released": Code.BAD_REQUEST,
    "topic-exists": Code.BAD_REQUEST,
    "topic-in-use": Code.BAD_REQUEST,
    "unauthorized": Code.UNAUTHORIZED,
    "forbidden": Code.FORBIDDEN,
    "busy": Code.TOO_MANY_REQUESTS,  # Java backs off on this one, Python raises it
    "too-many-requests": Code.TOO_MANY_REQUESTS,
    "disk-full": Code.TOO_MANY_REQUESTS,
    "partly-stored": Code.TOO_MANY_REQUESTS,
    "closed": Code.INTERNAL_SERVER_ERROR,
}


def status(code: int, text: str = "") -> Any:
    """A status whose message begins with the code's name."""
    name = Code.Name(code)
    return definition.Status(code=code, message=f"{name}: {text}" if text else name)


def status_of(error: TidemillError) -> Any:
    """The status that refuses a call for an error raised on purpose; the refusal is counted."""
    REJECTS.add("grpc", error.code)
    return status(_CODES.get(error.code, Code.INTERNAL_SERVER_ERROR), str(error))


OK = status(Code.OK)
INTERNAL = status(Code.INTERNAL_SERVER_ERROR, "internal error; see the log of the broker")
