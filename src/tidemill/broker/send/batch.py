"""Messages that may be stored: what admission makes of a request, of drafts or of a table, in columns.

A number stands for a column in which all rows are the same, None for a text column in which no row has any;
an absent column costs nothing. Texts are lists or Arrow arrays (`store/formats/texts.py`). Every row has
passed the checks that need no topic (`admit.py`, `admit_table.py`); what is decided under the writer lock is
not in here (`plan.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tidemill.broker.send.content import canonical_properties
from tidemill.core.errors import RequestError
from tidemill.core.frozen import frozen
from tidemill.log.arrays import I64, Flags
from tidemill.store.formats.framing import frame_bounds
from tidemill.store.formats.texts import Texts, some_rows, text_at

ONCE_NO, ONCE_KEEP, ONCE_REPLACE = range(3)
# No fewer bytes than a message takes in the log beside its texts, and an Arrow batch beside its rows.
_ROW_BYTES = 128
_ARROW_BYTES = 8 << 10


@frozen
class SendBatch:
    """Messages that are sent together."""

    count: int
    now_ms: int
    topics: list[str]  # distinct names
    which: I64 | None  # index of each row's topic; None: all are for the first
    due: I64 | int  # NO_TIME_MS: not timed; without the jitter
    timed: I64  # rows that are
    bodies: Texts
    ids: Texts | None = None
    lacks_ids: bool = False  # some rows have none: an empty one
    tags: Texts | None = None
    keys: Texts | None = None
    groups: Texts | None = None
    properties: Texts | None = None
    levels: I64 | int = 0
    born_at_ms: I64 | int | None = None  # None: when they are stored
    once: I64 | None = None  # ONCE_*
    jitter_ms: I64 | None = None
    has_made_id: Flags | None = None  # by a library that may give another message the same one
    notes: list[str] | None = None  # for the answers; empty where there is nothing to say
    errors: Mapping[int, RequestError] | None = None  # by row: what may not be stored

    def rows(self, which: I64) -> SendBatch:
        """Some of the rows, in their order."""
        return replace(self, **some_rows(self, which, ("topics", "errors")))

    def frames_at_most(self) -> list[int]:
        """For each frame that the rows need: no fewer bytes than they will take there."""
        columns = [self.ids, self.tags, self.keys, self.groups, self.properties, self.bodies]
        lists: list[Any] = [texts for texts in columns if texts is not None]
        if not isinstance(self.bodies, list):
            return [sum(int(texts.nbytes) for texts in lists) + self.count * _ROW_BYTES + _ARROW_BYTES]
        return [
            sum(len(text) for texts in lists for text in texts[start:end]) + (end - start) * _ROW_BYTES
            for start, end in frame_bounds(map(len, self.bodies))
        ]

    def content(self, row: int) -> dict[str, bytes]:
        """What a row says, by the names that `content.py` compares."""
        columns = (self.keys, self.bodies, self.tags, self.groups, self.properties)
        keys, body, tag, group, properties = (b"" if c is None else text_at(c, row) for c in columns)
        named = json.loads(properties) if properties else {}
        return {
            "keys": keys,
            "body": body,
            "tag": tag,
            "message_group": group,
            "properties": canonical_properties(named).encode(),
        }
