"""Jitter: how much later than asked a message falls due, so that many asked for one moment spread out.

The amount is uniform over the whole milliseconds 0 to `jitter_ms` and is made of the message's id alone. So
it is drawn once: a send that is repeated under its id comes to the same amount, with no state kept for it,
and a simulation needs no source of chance. A message that brings no id has the one that the broker makes.
Owns the draw, for one message and for whole columns, and what a jitter may be. Never earlier than asked.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemill.core.config import BrokerSettings
from tidemill.core.durations import format_duration
from tidemill.core.errors import IllegalDelayError
from tidemill.core.model import NO_TIME_MS
from tidemill.core.number_columns import whole_numbers
from tidemill.core.table_columns import JITTER_COLUMN
from tidemill.log.arrays import I64, Flags
from tidemill.store.find.hashing import hash_text
from tidemill.store.formats.texts import Texts, hash_column, slices_of

_SEED = 0  # of no hash of the find index


def drawn_ms(message_id: str, jitter_ms: int) -> int:
    """How much later the message with this id falls due."""
    return hash_text(message_id.encode(), _SEED) % (jitter_ms + 1)


def drawn_each(ids: Texts, jitter_ms: I64) -> I64:
    """The same for many."""
    hashes = hash_column(ids, _SEED)
    drawn: I64 = (hashes % (jitter_ms.astype(np.uint64) + np.uint64(1))).astype(np.int64)
    return drawn


# -- what a jitter may be -------------------------------------------------------------------------


def check_jitter(
    jitter_ms: int,
    due_ms: int | None,
    level: int,
    message_group: str,
    settings: BrokerSettings,
    now_ms: int,
    *,
    where: str = "",
) -> None:
    """`IllegalDelayError` unless a message due at `due_ms` (None: not timed) may have this jitter (not 0)."""
    said = f"{where}jitter {jitter_ms} ms"
    if jitter_ms < 0:
        raise IllegalDelayError(f"{said} is not possible; use 0 to {settings.max_delay_ms} ms")
    if level:
        raise IllegalDelayError(
            f"{said} is not possible on level {level}, whose messages keep their order; give a delay instead"
        )
    if message_group:
        raise IllegalDelayError(
            f"{said} is not possible in message group {message_group!r}, whose messages keep their order; "
            "remove one of them"
        )
    if due_ms is None:
        raise IllegalDelayError(f"{said} needs a delay or a delivery time as well")
    if due_ms + jitter_ms - now_ms > settings.max_delay_ms:
        limit = format_duration(settings.max_delay_ms)
        raise IllegalDelayError(
            f"{where}a delay of {format_duration(due_ms - now_ms)} with a jitter of "
            f"{format_duration(jitter_ms)} ({due_ms + jitter_ms - now_ms} ms together) is beyond the limit "
            f"of {limit} ({settings.max_delay_ms} ms); shorten them, or raise --max-delay"
        )


def jitter_of_rows(
    batch: pa.RecordBatch,
    due_ms: I64,
    levels: I64,
    groups: pa.Array,
    settings: BrokerSettings,
    now_ms: int,
    first_row: int,
) -> I64 | None:
    """The jitter of each row of a caller's batch; None if none has one.

    `due_ms` is -1 where a row is not timed. The first row that may not have its jitter is refused.
    """
    if JITTER_COLUMN not in batch.schema.names:
        return None
    jitter_ms: I64 = whole_numbers(JITTER_COLUMN, batch.column(JITTER_COLUMN)).fill_null(0).to_numpy()
    if not np.count_nonzero(jitter_ms):
        return None
    in_order = (levels > 0) | (slices_of(groups)[2] > 0)
    is_wrong = _wrong(jitter_ms, due_ms, in_order, now_ms + settings.max_delay_ms)
    if is_wrong.any():
        row = int(is_wrong.argmax())
        due = None if due_ms[row] == NO_TIME_MS else int(due_ms[row])
        where, group = f"row {first_row + row}: ", groups[row].as_py()
        check_jitter(int(jitter_ms[row]), due, int(levels[row]), group, settings, now_ms, where=where)
    return jitter_ms


def has_sound_jitter(jitter_ms: I64, due_ms: I64, in_order: Flags, latest_ms: int) -> bool:
    """Whether all messages may have the jitter they have; `in_order`: those on a level or in a group."""
    return not _wrong(jitter_ms, due_ms, in_order, latest_ms).any()


def _wrong(jitter_ms: I64, due_ms: I64, in_order: Flags, latest_ms: int) -> Flags:
    """Which rows may not have the jitter they have. A sum is not made of what is too large for one."""
    is_kept = in_order | (due_ms == NO_TIME_MS)
    is_too_long = jitter_ms > latest_ms - due_ms
    wrong: Flags = (jitter_ms < 0) | ((jitter_ms > 0) & (is_kept | is_too_long))
    return wrong
