"""What a message says: the part of it that must be the same when a send is repeated under the same id.

Owns that rule. Content is body, tag, keys, message group and properties. The due time is none: a delay counts
from each attempt, so a repeat of the same send falls due at another moment. Nor is what belongs to an attempt
or is added by the broker. A send that is made `once` by its key asks for the first message with that key to
stay, whatever the second one holds: there the key alone must be the same.

Only sends whose id was seen before are compared. Where a library made the id, and not the caller, another
content is another message: RocketMQ's clients make an id of the machine's network address, the process, the
second and a counter, and threads of one Node program, or containers that look alike, come to the same ones.
Such a message goes on under an id made of the first one and of its content, so that it is recognised in its
turn when it is repeated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from tidemill.core.errors import IdInUseError
from tidemill.core.limits import ID_CHARS_MAX
from tidemill.core.model import Draft, StoredMessage
from tidemill.core.property_names import CARRIED_PROPERTIES, HALF_DELAY_PROPERTY
from tidemill.store.formats.message_format import encode_properties

Content = Mapping[str, bytes]

# Of an attempt to send, or of the broker's own making: no content.
_NO_CONTENT = {*CARRIED_PROPERTIES, HALF_DELAY_PROPERTY}
# In the order in which they are compared.
_WORDS = {
    "keys": "other keys",
    "body": "another body",
    "tag": "another tag",
    "message_group": "another message group",
    "properties": "other properties",
}
_DIGEST_BYTES = 8


def content_of(message: Draft | StoredMessage) -> dict[str, bytes]:
    """What a message says."""
    return {
        "keys": " ".join(message.keys).encode(),
        "body": bytes(message.body),
        "tag": message.tag.encode(),
        "message_group": message.message_group.encode(),
        "properties": canonical_properties(message.properties).encode(),
    }


def require_same(given: Content, known: Content, message_id: str, topic_name: str, *, by_key: bool) -> None:
    """`IdInUseError` unless a send says what the message with its id says; `by_key`: the keys are enough."""
    for name, words in _WORDS.items():
        if given[name] != known[name] and (name == "keys" or not by_key):
            raise IdInUseError(
                f"id {message_id!r} in topic {topic_name!r} belongs to another message, with {words}; "
                "use a unique id"
            )


def id_of_other(message_id: str, content: Content) -> str:
    """The id under which a message goes on whose id, made by a library, another message has."""
    keys = content["keys"].split(b" ") if content["keys"] else []
    parts = (content["tag"], *keys, content["message_group"], content["properties"], content["body"])
    digest = hashlib.blake2b(b"\0".join(parts), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{message_id[: ID_CHARS_MAX - len(digest) - 1]}-{digest}"


def canonical_properties(properties: Mapping[str, str]) -> str:
    """Properties that are content, written in one way: an object of a table may be written in several."""
    return encode_properties({k: properties[k] for k in sorted(properties.keys() - _NO_CONTENT)})
