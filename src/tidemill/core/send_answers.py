"""The wire format of the answers to a batch of sends: encoded by an endpoint, decoded by a client.

An answer is a JSON object: `broker`, columns `seq` and `due` (-1: not timed), `queue` and `offset` (where a
message went at once; -1: it waits; left out where all do), and, for the few that need it, by index:
`repeats`, `notes`, `errors` ([code, message]). One number as `seq` is the first message's, and each other has
the next; one number as `due` is all messages'.

Owns both directions; `send_batch.py` has the requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tidemill.core.errors import TidemillError, error_of
from tidemill.core.model import NO_OFFSET, NO_QUEUE, NO_TIME_MS, Draft, Handle, SendResult
from tidemill.core.send_batch import dumps, one_or_all

Answer = SendResult | TidemillError


def encode_answers(
    broker_id: str,
    seqs: Sequence[int],
    due: int | list[int],
    queues: list[int] | None = None,
    offsets: list[int] | None = None,
    special: Mapping[str, Mapping[int, object]] | None = None,
) -> bytes:
    """The answer to a request: what became of each message, in its order.

    Without `queues` and `offsets` all of them wait, with a range for `seqs` each has the next one, and one
    `due` is that of all. `special`: repeats, notes and errors, by index.
    """
    due = due if isinstance(due, int) else one_or_all(due)
    if offsets is None and isinstance(seqs, range) and isinstance(due, int) and not special:
        # What nearly every answer is; to make an encoder takes longer than to write two numbers.
        return b'{"broker":%b,"seq":%d,"due":%d}' % (_text(broker_id), seqs.start, due)
    columns: dict[str, Any] = {
        "broker": broker_id,
        "seq": seqs.start if isinstance(seqs, range) else seqs,
        "due": due,
    }
    if offsets and max(offsets) > NO_OFFSET:
        columns |= {"queue": queues, "offset": offsets}
    columns |= {name: values for name, values in (special or {}).items() if values}
    return dumps(columns).encode()


@lru_cache(maxsize=8)
def _text(text: str) -> bytes:
    return dumps(text).encode()


def result_of_new(
    broker_id: str, draft: Draft, seq: int, due_ms: int, queue: int = NO_QUEUE, offset: int = NO_OFFSET
) -> SendResult:
    """The result of a draft with an id of its own that was stored anew."""
    message_id = draft.id or ""
    if due_ms == NO_TIME_MS:
        if offset == NO_OFFSET:
            return SendResult(message_id, draft.topic, None, None)
        return SendResult(message_id, draft.topic, None, None, queue=queue, offset=offset)
    return SendResult(message_id, draft.topic, Handle(broker_id, draft.topic, message_id, seq), due_ms)


def decode_answers(data: bytes, drafts: Sequence[Draft]) -> list[Answer]:
    """Each draft's answer. The drafts carry ids of their own, as a client's always do."""
    columns = json.loads(str(data, "utf-8"))
    broker, seqs, dues = columns["broker"], columns["seq"], columns["due"]
    count = len(drafts)
    if type(seqs) is int:
        seqs = range(seqs, seqs + count)
    if type(dues) is int:
        dues = [dues] * count
    queues = columns.get("queue") or [NO_QUEUE] * count
    offsets = columns.get("offset") or [NO_OFFSET] * count
    answers: list[Answer] = [
        result_of_new(broker, *placed) for placed in zip(drafts, seqs, dues, queues, offsets, strict=True)
    ]
    repeats, notes = columns.get("repeats", {}), columns.get("notes", {})
    for index in {*repeats, *notes}:
        at = int(index)
        named = replace(drafts[at], id=repeats.get(index) or drafts[at].id)
        result = result_of_new(broker, named, seqs[at], dues[at], queues[at], offsets[at])
        answers[at] = replace(result, is_repeat=index in repeats, note=notes.get(index, ""))
    for index, (code, message) in columns.get("errors", {}).items():
        answers[int(index)] = error_of(code, message)
    return answers
