"""The hash of a few texts, made with Python's integers, is that of many, made with arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidemill.store.find.hashing import hash_slices, hash_text, hash_texts


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5), st.integers(0, 2**64 - 1))
def test_few_and_many_agree(texts: list[bytes], seed: int) -> None:
    seeds = np.full(len(texts), seed, np.uint64)
    many = hash_texts(texts * 20, np.tile(seeds, 20))
    assert hash_texts(texts, seeds).tolist() == many[: len(texts)].tolist()
    lengths = np.array(list(map(len, texts)))
    starts = np.cumsum(lengths) - lengths
    sliced = hash_slices(np.frombuffer(b"".join(texts), np.uint8), starts, lengths, seeds)
    assert sliced.tolist() == many[: len(texts)].tolist()
    assert sliced.dtype == np.uint64


@given(
    st.integers(0, 40).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=13))
)
def test_many_texts_of_one_length_hash_as_each_does_alone(texts: list[bytes]) -> None:
    seeds = np.arange(len(texts), dtype=np.uint64)
    alone = [hash_text(text, seed) for seed, text in enumerate(texts)]
    assert hash_texts(texts, seeds).tolist() == alone
