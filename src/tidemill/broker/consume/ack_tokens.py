"""The text of an ack token: which delivery it settles. Opaque to consumers, short as every ack carries it.

An ack token names group, topic, queue, offset, the number of the delivery and how often the group's way
through that queue had been reset: after a reset the same message is handed out as a first one again, and a
token from before must not settle that delivery. It also says which attempt the delivery is: fewer than its
number where some were returned untried.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from tidemill.core.arguments import require_kind
from tidemill.core.errors import InvalidAckTokenError
from tidemill.store.consumers.consumer_state import ConsumerState, GroupQueue
from tidemill.store.topics import TopicTable


class DeliveryName(NamedTuple):
    """The delivery that an ack token settles."""

    group: str
    topic: str
    queue_id: int
    offset: int
    number: int  # of the deliveries of this message
    resets: int
    attempt: int  # of those that were tried


def encode_ack_token(delivery: DeliveryName) -> str:
    # The short form where it says all: an earlier version can read it, should it be back.
    parts = ("r2", *delivery[:-1]) if delivery.attempt == delivery.number else ("r3", *delivery)
    text = "\n".join(map(str, parts))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_ack_token(ack_token: str) -> DeliveryName:
    """`InvalidAckTokenError` if it never was an ack token."""
    require_kind("an ack token", ack_token, str, "a text, that of the delivery")
    try:
        text = base64.urlsafe_b64decode(ack_token + "=" * (-len(ack_token) % 4)).decode()
        version, group, topic, *numbers = text.split("\n")
        if version == "r1":  # given before resets were counted
            numbers.append("0")
        elif version not in ("r2", "r3"):
            raise ValueError(version)
        if version != "r3":
            numbers.append(numbers[2])
        queue_id, offset, number, resets, attempt = map(int, numbers)
        return DeliveryName(group, topic, queue_id, offset, number, resets, attempt)
    except (ValueError, binascii.Error, UnicodeError):
        raise InvalidAckTokenError(
            f"not an ack token: {ack_token[:60]!r}; pass the ack token of the delivery"
        ) from None


def group_queue_held(delivery: DeliveryName, state: ConsumerState, topics: TopicTable) -> GroupQueue | None:
    """The group_queue of a delivery that is still out under this very token; None if it is not (any more).

    Call under the consumer log's lock.
    """
    group, topic = state.group(delivery.group), topics.named(delivery.topic)
    if group is None or topic is None:
        return None
    group_queue = (group.id, topic.id, delivery.queue_id)
    progress = state.progress(group_queue)
    if progress is None or progress.resets != delivery.resets:
        return None
    held = progress.taken.get(delivery.offset)
    return group_queue if held is not None and held[0] == delivery.number else None
