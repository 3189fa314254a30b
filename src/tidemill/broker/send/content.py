"""What a message says: the part of it that must be the same when a send is repeated under the same id.

Owns that rule. Content is body, tag, keys, message group and properties. The due time is none: a delay counts
from each attempt, so a repeat of the same send falls due at another moment. Nor is what belongs to an attempt
or is added by the broker. A send that is made `once` by its key asks for the first message with that key to
stay, whatever the second one holds: there the key alone must be the same.

Only sends whose id was seen before are compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.core.errors import IdInUseError
from tidemill.core.model import Draft, Once, StoredMessage
from tidemill.core.property_names import CARRIED_PROPERTIES, HALF_DELAY_PROPERTY
from tidemill.log.arrays import I64, Flags
from tidemill.store.formats.message_format import encode_properties, slices_of

# The columns of the message schema that are content; the keys first, as they are compared of every row.
CONTENT = ("keys", "body", "tag", "message_group", "properties")

# Of an attempt to send, or of the broker's own making: no content.
_NO_CONTENT = {*CARRIED_PROPERTIES, HALF_DELAY_PROPERTY}
_WORDS = {
    "keys": "other keys",
    "body": "another body",
    "tag": "another tag",
    "message_group": "another message group",
    "properties": "other properties",
}


def content_of(message: Draft | StoredMessage) -> dict[str, bytes]:
    """What a message says, by the names of `CONTENT`."""
    return {
        "keys": " ".join(message.keys).encode(),
        "body": bytes(message.body),
        "tag": message.tag.encode(),
        "message_group": message.message_group.encode(),
        "properties": _properties(message.properties).encode(),
    }


def require_same(draft: Draft, first: StoredMessage, topic_name: str) -> None:
    """`IdInUseError` unless a draft says what the message says that has its id."""
    given, known = content_of(draft), content_of(first)
    compared = CONTENT[:1] if draft.once is not Once.NO and draft.keys else CONTENT
    for name in compared:
        if given[name] != known[name]:
            raise _id_in_use(first.id, topic_name, name)


def require_same_rows(
    batch: pa.RecordBatch,
    rows: I64,
    firsts: Sequence[pa.Array],
    is_once: Flags,
    topic_name: Callable[[int], str],
    first_row: int,
) -> None:
    """The same for rows of a batch of the message schema, each with the `CONTENT` of the message that has its
    id (null: damaged). `topic_name`: by topic id; `first_row`: the number of the first row in the table."""
    which = pa.array(rows)
    has_key = slices_of(batch.column("keys"))[2][rows] > 0
    is_by_key = is_once[rows] & has_key
    worst, field = len(rows), ""
    for name, known in zip(CONTENT, firsts, strict=True):
        given = batch.column(name).take(which)
        # Of a message whose bytes are damaged nothing is known: nothing can be said against the row.
        is_other = ~pc.equal(given, known).fill_null(True).to_numpy(zero_copy_only=False)
        if name != "keys":
            is_other &= ~is_by_key
        if name == "properties":  # one object may be written in several ways
            for index in np.flatnonzero(is_other).tolist():
                texts = given[index].as_py(), known[index].as_py()
                is_other[index] = len({_properties(json.loads(text) if text else {}) for text in texts}) > 1
        others = np.flatnonzero(is_other)
        if len(others) and others[0] < worst:
            worst, field = int(others[0]), name
    if field:
        row = int(rows[worst])
        topic = topic_name(batch.column("topic_id")[row].as_py())
        raise _id_in_use(batch.column("id")[row].as_py(), topic, field, f"row {first_row + row}: ")


def _id_in_use(message_id: str, topic_name: str, field: str, where: str = "") -> IdInUseError:
    return IdInUseError(
        f"{where}id {message_id!r} in topic {topic_name!r} belongs to another message, with "
        f"{_WORDS[field]}; use a unique id"
    )


def _properties(properties: Mapping[str, str]) -> str:
    return encode_properties({k: properties[k] for k in sorted(properties.keys() - _NO_CONTENT)})
