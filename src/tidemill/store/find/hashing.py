"""A 64-bit hash of many byte strings at once.

Pure and stable: it is written to disk (find index, entries), so it never changes within a format.
Works on slices of one buffer, eight bytes of every slice per pass, so cost follows the bytes and not the
number of strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np

from tidemill.log.arrays import I64, U8, U64

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_LENGTH_MULTIPLIER = np.uint64(0xC2B2AE3D27D4EB4F)
_SEED_MULTIPLIER = np.uint64(0x165667B19E3779F9)
_SHIFT = np.uint64(32)
_FINAL_SHIFT = np.uint64(29)
# The same as arrays, which need not be made into some each time.
_MULTIPLY_BY, _SHIFT_BY, _FINALLY_BY = map(np.asarray, (_MULTIPLIER, _SHIFT, _FINAL_SHIFT))
_WORD = 8
# Below so many, Python's own integers are quicker than the fixed cost of arrays.
_FEW = 12
_MASK = (1 << 64) - 1
_MULTIPLIER_INT, _LENGTH_INT, _SEED_INT = map(int, (_MULTIPLIER, _LENGTH_MULTIPLIER, _SEED_MULTIPLIER))


def hash_slices(data: U8, starts: I64, lengths: I64, seeds: U64) -> U64:
    """Hash `data[start : start + length]` of every slice, each with its own seed."""
    if len(starts) <= _FEW:
        spans = zip(starts.tolist(), lengths.tolist(), seeds.tolist(), strict=True)
        few = [hash_text(data[start : start + length].tobytes(), seed) for start, length, seed in spans]
        return np.array(few, np.uint64)
    hashes = seeds * _SEED_MULTIPLIER ^ lengths.astype(np.uint64) * _LENGTH_MULTIPLIER
    if not len(starts):
        return hashes
    padded = np.concatenate((data, np.zeros(_WORD, np.uint8)))
    words: U64 = np.ndarray((len(data) + 1,), "<u8", padded.data, 0, (1,))
    shortest, longest = int(lengths.min()), int(lengths.max())
    for done in range(0, longest, _WORD):
        if done + _WORD <= shortest:  # the whole word belongs to every slice
            hashes = _mixed(hashes, words[starts + done])
            continue
        left = lengths - done
        active = np.flatnonzero(left > 0)
        if len(active) == len(starts):
            hashes = _mixed(hashes, _masked(words[starts + done], left))
        else:
            word = _masked(words[starts[active] + done], left[active])
            hashes[active] = _mixed(hashes[active], word)
    return _mixed(hashes, hashes >> _FINAL_SHIFT)


def hash_text(text: bytes, seed: int) -> int:
    """The same hash for one text, in Python's integers."""
    hashed = (seed * _SEED_INT ^ len(text) * _LENGTH_INT) & _MASK
    for at in range(0, len(text), _WORD):
        product = (hashed ^ int.from_bytes(text[at : at + _WORD], "little")) * _MULTIPLIER_INT & _MASK
        hashed = product ^ product >> 32
    product = (hashed ^ hashed >> 29) * _MULTIPLIER_INT & _MASK
    return product ^ product >> 32


def _masked(words: U64, left: I64) -> U64:
    """Keep the bytes that belong to the slice: all eight, or the `left` lowest."""
    unused_bits = ((_WORD - np.minimum(left, _WORD)) * 8).astype(np.uint64)
    masked: U64 = words << unused_bits >> unused_bits
    return masked


def _mixed(hashes: U64, words: U64) -> U64:
    product = (hashes ^ words) * _MULTIPLIER
    mixed: U64 = product ^ product >> _SHIFT
    return mixed


def hash_texts(texts: Sequence[bytes], seeds: U64 | int) -> U64:
    """The same hash for a list of byte strings, each with its own seed or all with one."""
    if len(texts) <= _FEW:
        each = repeat(seeds) if isinstance(seeds, int) else seeds.tolist()
        return np.array(list(map(hash_text, texts, each)), np.uint64)
    sizes = list(map(len, texts))
    if sizes.count(sizes[0]) == len(sizes):  # ids mostly are
        return _hash_equally_long(texts, sizes[0], seeds)
    if isinstance(seeds, int):
        seeds = np.full(len(texts), seeds, np.uint64)
    lengths = np.array(sizes, np.int64)
    starts = np.cumsum(lengths) - lengths
    return hash_slices(np.frombuffer(b"".join(texts), np.uint8), starts, lengths, seeds)


def _hash_equally_long(texts: Sequence[bytes], length: int, seeds: U64 | int) -> U64:
    """The same hash where no text is longer than another: the words lie in a grid."""
    zeros = bytes(-length % _WORD)
    grid: U64 = np.frombuffer(zeros.join(texts) + zeros, "<u8").reshape(len(texts), -1)
    if isinstance(seeds, int):
        hashes = np.empty(len(texts), np.uint64)
        hashes.fill((seeds * _SEED_INT ^ length * _LENGTH_INT) & _MASK)
    else:
        hashes = seeds * _SEED_MULTIPLIER ^ np.uint64(length * _LENGTH_INT & _MASK)
    shifted = np.empty_like(hashes)
    for words in grid.T:
        _mix(hashes, words, shifted)
    np.right_shift(hashes, _FINALLY_BY, shifted)
    _mix(hashes, shifted, shifted)
    return hashes


def _mix(hashes: U64, words: U64, shifted: U64) -> None:
    """What `_mixed` gives, in place: for few texts, making an array takes longer than filling it."""
    np.bitwise_xor(hashes, words, hashes)
    np.multiply(hashes, _MULTIPLY_BY, hashes)
    np.right_shift(hashes, _SHIFT_BY, shifted)
    np.bitwise_xor(hashes, shifted, hashes)


def topic_seeds(topic_ids: I64 | U64, purpose: int) -> U64:
    """Seeds that keep topics, and ids from keys, apart."""
    return topic_ids.astype(np.uint64) * np.uint64(4) + np.uint64(purpose)


def seed_of(topic_id: int, purpose: int) -> int:
    """The seed that `topic_seeds` gives one topic."""
    return topic_id * 4 + purpose


PURPOSE_ID = 1
PURPOSE_KEY = 2
PURPOSE_REQUEST = 3
_NO_TOPIC = 0


def id_hash(topic_id: int, message_id: str) -> int:
    return hash_text(message_id.encode(), seed_of(topic_id, PURPOSE_ID))


def key_hash(topic_id: int, key: str) -> int:
    return hash_text(key.encode(), seed_of(topic_id, PURPOSE_KEY))


def request_hash(request_id: bytes) -> int:
    """Of the id of a cancel or a reschedule, which belongs to no topic."""
    return hash_text(request_id, seed_of(_NO_TOPIC, PURPOSE_REQUEST))
