"""The calls for what failed: send back, list dead letters, resend them. Both clients share them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from tidemill.client.answers import DeadLetter, SentBack
from tidemill.client.verbs import Call, get, known, post


def send_back(receipts: Sequence[str], level: int) -> Call[list[SentBack]]:
    body = {"receipts": list(receipts), "level": level}
    # A repeat of one that was answered finds its receipts spent: better not to ask twice.
    return post(
        "/v1/send-back",
        body,
        lambda said: [SentBack(**known(SentBack, fields)) for fields in said["answers"]],
        is_repeatable=False,
    )


def dead_letters(group: str | None, limit: int) -> Call[list[DeadLetter]]:
    query = {"group": group, "limit": limit}
    return get("/v1/dead-letters", query, lambda said: [_letter(fields) for fields in said["dead_letters"]])


def _letter(fields: dict[str, Any]) -> DeadLetter:
    text, encoded = fields.pop("body"), fields.pop("body_base64")
    body = text.encode() if text is not None else base64.b64decode(encoded or "")
    message_id, keys = fields.pop("message_id"), tuple(fields.pop("keys"))
    return DeadLetter(id=message_id, body=body, keys=keys, **known(DeadLetter, fields))


def resend_dead_letters(group: str, ids: Sequence[str] | None) -> Call[int]:
    body = {"group": group, "ids": None if ids is None else list(ids), "all": ids is None}
    return post("/v1/dead-letters/resend", body, lambda said: int(said["resent"]))
