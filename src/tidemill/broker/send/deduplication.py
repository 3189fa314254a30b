"""Which rows of a bulk send are there already: by id within the hour, or, sent once, by a key that waits.

The id of a row that is sent once counts for as long as the message is kept, whatever became of it: so a job
that is run again after hours schedules nothing twice, though its messages went out meanwhile.
A row with the id of another message, one with another content (`content.py`), is refused with its number.
The bulk side of de-duplication. Looks all rows up at once; only hits are read back from the log, frame by
frame. Call under the writer lock, so that two equal sends at the same moment still make one message.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.broker.send.content import CONTENT, require_same_rows
from tidemill.core.limits import DEDUPLICATION_MS
from tidemill.core.model import NO_SEQ, NO_TIME_MS
from tidemill.log.arrays import I64, U64, Flags
from tidemill.store.batch_read import columns_at
from tidemill.store.find.find_runs import PLACE_BIT, are_places
from tidemill.store.find.hashing import PURPOSE_ID, PURPOSE_KEY, hash_slices, topic_seeds
from tidemill.store.formats.message_format import slices_of
from tidemill.store.ledger import State
from tidemill.store.message_store import MessageStore

FRESH, STORED = -1, -2  # what a row repeats, where that is no row of the batch


@dataclass(slots=True)
class Repeats:
    """Per row: `FRESH`, `STORED` (its seq, time and id are then those of the stored one), or a row above."""

    same_as: I64
    seqs: I64
    due: I64
    stored_ids: dict[int, str]  # of rows whose stored message may have another id than they brought

    @property
    def fresh(self) -> I64:
        return np.flatnonzero(self.same_as == FRESH)


def find_repeats(
    store: MessageStore, batch: pa.RecordBatch, is_once: Flags, now_ms: int, first_row: int = 0
) -> Repeats:
    """Which rows of a batch of the message schema need not be stored. Call under the writer lock.

    `first_row` is the number of the batch's first row in the whole table.
    """
    count = batch.num_rows
    due = batch.column("deliver_at_ms").to_numpy().copy()
    repeats = Repeats(np.full(count, FRESH), np.full(count, NO_SEQ), due, {})
    _repeated_ids(store, batch, repeats, is_once, now_ms, first_row)
    if is_once.any():
        _repeated_keys(store, batch, repeats, is_once & (due != NO_TIME_MS))
    return repeats


# -- by id ----------------------------------------------------------------------------------------


def _repeated_ids(
    store: MessageStore,
    batch: pa.RecordBatch,
    repeats: Repeats,
    is_once: Flags,
    now_ms: int,
    first_row: int,
) -> None:
    given, hashes = _hashes(batch, "id", PURPOSE_ID)
    if not len(given):
        return
    found_at, refs = store.indexes.find.find_many(hashes)
    if len(found_at):
        places, seqs, due = _where(store, refs)
        there = (places >> np.uint64(16) >= np.uint64(store.log.head)) & (places > 0)
        rows, places, seqs, due = given[found_at[there]], places[there], seqs[there], due[there]
        ids, stored_at = columns_at(store, places, ("id", "stored_at_ms"))
        is_same = _are_equal(ids, batch.column("id").take(pa.array(rows)))
        is_same |= ids.is_null().to_numpy(zero_copy_only=False)  # damaged: known by the hash
        stored_at_ms = stored_at.fill_null(NO_TIME_MS).to_numpy(zero_copy_only=False).copy()
        for at in np.flatnonzero(stored_at_ms == NO_TIME_MS).tolist():
            stored_at_ms[at] = stored_about_ms(store, int(seqs[at]), int(places[at]), now_ms)
        is_same &= is_once[rows] | (now_ms - stored_at_ms < DEDUPLICATION_MS)
        hit = rows[is_same]
        repeats.same_as[hit], repeats.seqs[hit], repeats.due[hit] = STORED, seqs[is_same], due[is_same]
        if len(hit):
            # Hits of one row come in ascending order; the last of each is the one that it repeats.
            hit, from_last = np.unique(hit[::-1], return_index=True)
            contents = columns_at(store, places[is_same][::-1][from_last], CONTENT)
            require_same_rows(batch, hit, contents, is_once, partial(_name_of, store), first_row)
    is_fresh = repeats.same_as[given] == FRESH
    rows, firsts = _same_before(batch, "id", given[is_fresh], hashes[is_fresh])
    repeats.same_as[rows] = firsts
    if len(rows):
        contents = [batch.column(name).take(pa.array(firsts)) for name in CONTENT]
        require_same_rows(batch, rows, contents, is_once, partial(_name_of, store), first_row)


def _name_of(store: MessageStore, topic_id: int) -> str:
    topic = store.indexes.topics.by_id(topic_id)
    return "" if topic is None else topic.name


def _where(store: MessageStore, refs: U64) -> tuple[U64, I64, I64]:
    """Place (0: nowhere any more), seq and due time of what each ref means."""
    ledger = store.indexes.ledger
    places = np.where(are_places(refs), refs & ~PLACE_BIT, np.uint64(0))
    seqs, due = np.full(len(refs), NO_SEQ, np.int64), np.full(len(refs), NO_TIME_MS, np.int64)
    timed = np.flatnonzero((refs >= np.uint64(ledger.head_seq)) & (refs < np.uint64(ledger.next_seq)))
    timed = timed[ledger.states(refs[timed].astype(np.int64)) != State.MOVED]
    seqs[timed] = refs[timed].astype(np.int64)
    rows = store.indexes.entries.take(seqs[timed])
    places[timed], due[timed] = rows["place"], rows["deliver_at_ms"]
    return places, seqs, due


def stored_about_ms(store: MessageStore, seq: int, place: int, now_ms: int) -> int:
    """When a message was stored; for one that is damaged and not timed, at the latest."""
    if seq != NO_SEQ:
        return int(store.entry(seq)["stored_at_ms"])
    stored_by_ms = store.stored_by_ms(place)
    return now_ms if stored_by_ms == NO_TIME_MS else stored_by_ms


# -- once by key ----------------------------------------------------------------------------------


def _repeated_keys(store: MessageStore, batch: pa.RecordBatch, repeats: Repeats, is_once: Flags) -> None:
    """Rows whose key waits already, in the store or in an earlier row of the batch."""
    given, hashes = _hashes(batch, "keys", PURPOSE_KEY)
    asks = is_once[given] & (repeats.same_as[given] == FRESH)
    _stored_keys(store, batch, repeats, given[asks], hashes[asks])
    # Any timed row that will be stored makes its key wait, whether or not it was itself sent once.
    waits = (repeats.same_as[given] == FRESH) & (repeats.due[given] != NO_TIME_MS)
    rows, firsts = _same_before(batch, "keys", given[waits], hashes[waits])
    asks_again = is_once[rows]
    repeats.same_as[rows[asks_again]] = firsts[asks_again]


def _stored_keys(
    store: MessageStore, batch: pa.RecordBatch, repeats: Repeats, given: I64, hashes: U64
) -> None:
    """Mark the rows with a key that waits in the store; the oldest that waits is the one they repeat."""
    found_at, refs = store.indexes.find.find_many(hashes)
    known = refs < PLACE_BIT
    rows, seqs = given[found_at[known]], refs[known].astype(np.int64)
    waits = store.indexes.ledger.pending_mask(seqs)
    rows, seqs = rows[waits], seqs[waits]
    if not len(rows):
        return
    entries = store.indexes.entries.take(seqs)
    ids, keys = columns_at(store, entries["place"].astype(np.uint64), ("id", "keys"))
    wanted = batch.column("keys").take(pa.array(rows))
    is_same = _are_equal(keys, wanted)
    several = pc.match_substring(keys, " ").fill_null(False).to_numpy(zero_copy_only=False)
    for at in np.flatnonzero(several).tolist():
        is_same[at] = wanted[at].as_py() in keys[at].as_py().split(" ")
    # Hits of one row come in ascending order, so the first of each is the oldest.
    at_first = np.unique(rows[is_same], return_index=True)[1]
    hits = np.flatnonzero(is_same)[at_first]
    found = rows[hits]
    repeats.same_as[found], repeats.seqs[found] = STORED, seqs[hits]
    repeats.due[found] = entries["deliver_at_ms"][hits]
    repeats.stored_ids.update(zip(found.tolist(), ids.take(pa.array(hits)).to_pylist(), strict=True))


# -- both -----------------------------------------------------------------------------------------


def _hashes(batch: pa.RecordBatch, name: str, purpose: int) -> tuple[I64, U64]:
    """The rows that have a text in this column, and its hash as the find index knows it."""
    texts, starts, lengths = slices_of(batch.column(name))
    given = np.flatnonzero(lengths)
    seeds = topic_seeds(batch.column("topic_id").to_numpy()[given].astype(np.uint64), purpose)
    return given, hash_slices(texts, starts[given], lengths[given], seeds)


def _same_before(batch: pa.RecordBatch, name: str, rows: I64, hashes: U64) -> tuple[I64, I64]:
    """The rows whose text was in an earlier one of `rows` of the same topic, and the first such row."""
    nothing = np.empty(0, np.int64)
    if len(rows) < 2:
        return nothing, nothing
    distinct, firsts, which = np.unique(hashes, return_index=True, return_inverse=True)
    if len(distinct) == len(hashes):
        return nothing, nothing
    later = np.flatnonzero(firsts[which] != np.arange(len(hashes)))
    again, first_rows = rows[later], rows[firsts[which[later]]]
    texts, topic_ids = batch.column(name), batch.column("topic_id").to_numpy()
    is_same = _are_equal(texts.take(pa.array(again)), texts.take(pa.array(first_rows)))
    is_same &= topic_ids[again] == topic_ids[first_rows]
    return again[is_same], first_rows[is_same]


def _are_equal(ones: pa.Array, others: pa.Array) -> Flags:
    flags: Flags = pc.equal(ones, others).fill_null(False).to_numpy(zero_copy_only=False)
    return flags.copy()
