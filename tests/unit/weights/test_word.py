"""Version words: what they say, and that half of one and half of another say nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport import InvalidUse
from transport.weights.word import (
    EMPTY,
    MAX_VERSION,
    State,
    check_version,
    decode,
    decode_all,
    encode,
)

versions = st.integers(-1, MAX_VERSION)
states = st.sampled_from(State)


@given(versions, states)
def test_there_and_back(version, state):
    word = encode(version, state)
    assert 0 <= word < 1 << 64
    assert decode(word) == (version, state)
    assert decode(word).readable == (version >= 0 and state is not State.WRITING)


@given(st.lists(st.integers(0, (1 << 64) - 1) | st.builds(encode, versions, states)))
def test_an_array_of_them_says_the_same(words):
    found = decode_all(np.array(words, np.uint64))
    expected = [decode(word) for word in words]
    assert found[0].tolist() == [word.version for word in expected]
    assert found[1].tolist() == [word.state for word in expected]


def test_empty_memory_holds_nothing():
    assert EMPTY == 0
    assert not decode(EMPTY).readable


@given(st.integers(0, MAX_VERSION - 1), st.integers(1, 7))
def test_half_of_the_next_word_is_no_word(version, cut):
    """A copy that is not atomic may bring the low bytes of one and the high bytes of the other."""
    old = encode(version, State.WRITING).to_bytes(8, "little")
    new = encode(version + 1, State.STABLE).to_bytes(8, "little")
    for torn in (old[:cut] + new[cut:], new[:cut] + old[cut:]):
        word = decode(int.from_bytes(torn, "little"))
        assert torn in (old, new) or not word.readable or word.version > version


@pytest.mark.parametrize("version", [-1, MAX_VERSION + 1, 1.0, "1", None, True])
def test_what_is_no_version(version):
    with pytest.raises(InvalidUse, match="version"):
        check_version(version)
