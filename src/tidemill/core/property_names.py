"""Names of properties that belong to the broker: no caller may set them, and a receiver sees them apart.

Owns the list. Most names are RocketMQ's; the case counts, as there. The broker writes some of them itself, in
messages that it makes again (a retry, a dead letter) or when it delivers over gRPC: set by a caller they
would be taken for the broker's word. What a caller gives is checked in one place
(`broker/send/admission.py`); what the broker writes never goes through it.
"""

from __future__ import annotations

from collections.abc import Mapping

# Fields of RocketMQ's message that travel as properties; the caller did not count them, so they count apart.
CARRIED_PROPERTIES = ("__born_host", "__gzip", "__trace")
# Where the half of a transaction keeps the delay that will count from its commit.
HALF_DELAY_PROPERTY = "__half_delay_ms"
# Of a message that was sent back, or that a group gave up on.
ORIGIN_TOPIC = "RETRY_TOPIC"
ORIGIN_ID = "ORIGIN_MESSAGE_ID"
ATTEMPTS = "RECONSUME_TIME"
LETTER_TOPIC = "DLQ_ORIGIN_TOPIC"
LETTER_ID = "DLQ_ORIGIN_MESSAGE_ID"
# How a message travelled, and what it belongs to: added when it is delivered over gRPC.
STORED_AT, DUE_AT, RELEASED_AT = "__stored_at", "__due_at", "__released_at"
RUNNER, ROLLS = "__runner", "__rolls"
MESSAGE_GROUP = "__SHARDINGKEY"
TRANSACTION_ID = "__transactionId__"

_WRITTEN = (
    *CARRIED_PROPERTIES,
    HALF_DELAY_PROPERTY,
    *(ORIGIN_TOPIC, ORIGIN_ID, ATTEMPTS, LETTER_TOPIC, LETTER_ID),
    *(STORED_AT, DUE_AT, RELEASED_AT, RUNNER, ROLLS, MESSAGE_GROUP, TRANSACTION_ID),
)
# RocketMQ's own: its clients and consumers give them a meaning.
_FOREIGN = (
    *("UNIQ_KEY", "TAGS", "KEYS", "WAIT", "REAL_TOPIC", "REAL_QID", "PGROUP", "CLUSTER"),
    *("MSG_REGION", "TRACE_ON", "TRAN_MSG"),
)
RESERVED_PROPERTIES = frozenset((*_WRITTEN, *_FOREIGN))


def split_properties(properties: Mapping[str, str]) -> tuple[Mapping[str, str], dict[str, str]]:
    """The caller's own properties of a stored message, which may be sent again; and those of the broker."""
    reserved = properties.keys() & RESERVED_PROPERTIES
    if not reserved:
        return properties, {}
    own = {name: value for name, value in properties.items() if name not in reserved}
    return own, {name: value for name, value in properties.items() if name in reserved}
