"""The models of the admin API for damage to the commit log."""

from __future__ import annotations

from pydantic import BaseModel, Field


class DamageOut(BaseModel):
    """What is known to be damaged in the commit log since the start; see `/v1/damaged`."""

    frames: int = 0
    messages: int = Field(0, description="in them, waiting or in a queue; they are not delivered")
    pending: int = Field(0, description="of those, how many wait; retention keeps the log from the first on")


class DamagedOut(BaseModel):
    """A message whose bytes in the commit log are damaged, as far as it is known without them."""

    topic: str
    state: str = Field(description="pending, released, sent (at once), or open (a transaction)")
    queue: int
    offset: int | None = Field(description="in its queue; null: in none")
    seq: int | None = Field(description="null: not timed")
    message_id: str = Field(description="empty where it is not known")
    id_hash: str = Field(description="hash of topic and id, in hexadecimal; empty where it is not known")
    handle: str | None = Field(description="cancels it, if it waits")
    deliver_at_ms: int | None
    stored_at_ms: int | None
    released_at_ms: int | None
    size: int | None = Field(description="null where it is not known")
    file: str
    position: int = Field(description="byte of the file at which its frame begins")
    log_offset: int
    row: int = Field(description="which message of its frame it is, from 0")


class DamagedListOut(DamageOut):
    damaged: list[DamagedOut]
