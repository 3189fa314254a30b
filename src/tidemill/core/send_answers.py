"""The wire format of the answers to a batch of sends: encoded by an endpoint, decoded by a client.

An answer is a JSON object: `broker`, columns `seq` and `due` (-1: not timed), `queue` and `offset` (where a
message went at once; -1: it waits; left out where all do), and, for the few that need it, by index:
`repeats`, `notes`, `errors` ([code, message]). One number as `seq` is the first message's, and each other has
the next; one number as `due` is all messages'.

Owns both directions; `send_batch.py` has the requests.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tidemill.core.errors import TidemillError, error_of
from tidemill.core.model import NO_OFFSET, NO_QUEUE, NO_SEQ, NO_TIME_MS, Draft, Handle, SendResult
from tidemill.core.send_batch import dumps, one_or_all

Answer = SendResult | TidemillError


def encode_answers(broker_id: str, answers: Sequence[Answer]) -> bytes:
    """The answer to a request: what became of each message, in its order."""
    rows: list[tuple[int, int, int, int]] = []
    repeats: dict[int, str] = {}
    notes: dict[int, str] = {}
    errors: dict[int, list[str]] = {}
    for index, answer in enumerate(answers):
        if isinstance(answer, SendResult):
            seq = answer.handle.seq if answer.handle is not None else NO_SEQ
            due_ms = NO_TIME_MS if answer.deliver_at_ms is None else answer.deliver_at_ms
            if answer.queue is None or answer.offset is None:
                rows.append((seq, due_ms, NO_QUEUE, NO_OFFSET))
            else:
                rows.append((seq, due_ms, answer.queue, answer.offset))
            if answer.is_repeat:
                repeats[index] = answer.id
            if answer.note:
                notes[index] = answer.note
        else:
            rows.append((NO_SEQ, NO_TIME_MS, NO_QUEUE, NO_OFFSET))
            errors[index] = [answer.code, str(answer)]
    columns = _placed(broker_id, *([row[at] for row in rows] for at in range(4)))
    special = (("repeats", repeats), ("notes", notes), ("errors", errors))
    columns |= {name: values for name, values in special if values}
    return dumps(columns).encode()


def encode_plain_answers(
    broker_id: str,
    seqs: Sequence[int],
    dues: list[int],
    queues: list[int] | None = None,
    offsets: list[int] | None = None,
) -> bytes:
    """The answer to a request whose messages were all stored anew, with nothing more to say of any.

    Without `queues` and `offsets` all of them wait, and with a range for `seqs` each has the next one.
    """
    due = one_or_all(dues)
    if offsets is None and isinstance(seqs, range) and isinstance(due, int):
        # What nearly every answer is; to make an encoder takes longer than to write two numbers.
        return b'{"broker":%b,"seq":%d,"due":%d}' % (_text(broker_id), seqs.start, due)
    return dumps(_placed(broker_id, seqs, dues, queues, offsets)).encode()


@lru_cache(maxsize=8)
def _text(text: str) -> bytes:
    return dumps(text).encode()


def _placed(
    broker_id: str,
    seqs: Sequence[int],
    dues: list[int],
    queues: list[int] | None,
    offsets: list[int] | None,
) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "broker": broker_id,
        "seq": seqs.start if isinstance(seqs, range) else seqs,
        "due": one_or_all(dues),
    }
    if offsets and max(offsets) > NO_OFFSET:
        columns |= {"queue": queues, "offset": offsets}
    return columns


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
