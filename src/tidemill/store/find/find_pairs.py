"""What a frame adds to the find index: pairs (hash, ref). Pure.

Owns which hash leads to what: the id of a message, and each of its keys, to the message; the id of a request
to each frame that carried it out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tidemill.log.arrays import I64
from tidemill.log.frame import Frame
from tidemill.store.find.find_runs import PLACE_BIT, Pairs, request_ref
from tidemill.store.find.hashing import request_hash
from tidemill.store.formats.frame_contents import messages_in, request_in
from tidemill.store.formats.message_format import Columns, Section
from tidemill.store.formats.new_messages import Written
from tidemill.store.formats.request_format import Request


def pairs_in(frame: Frame) -> Iterator[Pairs]:
    """All pairs of a frame."""
    section, request = messages_in(frame), request_in(frame)
    if section is not None:
        columns = section.columns()
        yield pairs_of_messages(frame.offset, section, columns, columns.timed_rows)
    if request is not None:
        yield pairs_of_request(frame.offset, request)


def pairs_of_messages(offset: int, section: Section | Written, columns: Columns, timed: I64) -> Pairs:
    """The pairs of the messages in the frame at `offset`, of which the rows `timed` have seqs."""
    if len(timed) == section.count:
        refs = np.arange(section.first_seq, section.first_seq + section.count, dtype=np.uint64)
    else:
        refs = np.arange(section.count, dtype=np.uint64) | PLACE_BIT | np.uint64(offset << 16)
        refs[timed] = section.first_seq + np.arange(len(timed), dtype=np.uint64)
    if not len(columns.key_rows):
        return columns.id_hash, refs
    hashes = np.concatenate((columns.id_hash, columns.key_hashes))
    return hashes, np.concatenate((refs, refs[columns.key_rows]))


def pairs_of_request(offset: int, request: Request) -> Pairs:
    """The pair of the request that the frame at `offset` carries out."""
    return np.array([request_hash(request.id)], np.uint64), np.array([request_ref(offset)], np.uint64)
