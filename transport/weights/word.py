"""The word in registered memory that tells which version a memory holds, and whether it is whole.

Pure. Imports numpy and errors. A sequence lock (Boehm, "Can seqlocks get along with programming
language memory models?", MSPC 2012) whose counter is the version itself. The check bits make a word
that was read half old and half new, and memory that holds something else, look like no version.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from transport.errors import InvalidUse

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_VERSION = (1 << 45) - 1

_STATE_BITS, _CHECK_BITS = 2, 16
_MIX = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio (Knuth, TAOCP 3, 6.4)
_ALL = (1 << 64) - 1


class State(enum.IntEnum):
    """What may be done with the memory of a version."""

    STABLE = 0  # read
    CLOSING = 1  # finish reading what was begun; begin nothing
    WRITING = 2  # nothing: it holds no version


EMPTY = 0
"""The word of memory that never held a version."""


class Word(NamedTuple):
    version: int  # -1: none, or not a word
    state: State

    @property
    def readable(self) -> bool:
        """Whether what was read until now is of this version."""
        return self.version >= 0 and self.state is not State.WRITING


def encode(version: int, state: State) -> int:
    """The word. `version` -1 is none, which is how memory begins that is written for the first
    time."""
    payload = (version + 1) << _STATE_BITS | state
    return payload << _CHECK_BITS | _check(payload)


def decode(word: int) -> Word:
    """What a word says; one that does not check says that nothing is there."""
    payload = word >> _CHECK_BITS
    if word & ((1 << _CHECK_BITS) - 1) != _check(payload) or payload & 3 == 3:
        return Word(-1, State.WRITING)
    return Word((payload >> _STATE_BITS) - 1, State(payload & 3))


def decode_all(words: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Versions and states of an array of words, as `decode`."""
    payload = words >> np.uint64(_CHECK_BITS)
    mixed = (payload * np.uint64(_MIX)) >> np.uint64(64 - _CHECK_BITS)
    state = (payload & np.uint64(3)).astype(np.uint8)
    bad = ((words & np.uint64((1 << _CHECK_BITS) - 1)) != mixed) | (state == 3)
    version = (payload >> np.uint64(_STATE_BITS)).astype(np.int64) - 1
    version[bad], state[bad] = -1, State.WRITING
    return version, state


def check_version(version: Any) -> int:
    """A version as it came from the user. Raises InvalidUse."""
    if isinstance(version, bool) or not isinstance(version, (int, np.integer)):
        raise InvalidUse(f"a version is a whole number, not {version!r:.80}")
    if not 0 <= version <= MAX_VERSION:
        raise InvalidUse(f"a version is between 0 and {MAX_VERSION}, not {version}")
    return int(version)


def _check(payload: int) -> int:
    return (payload * _MIX & _ALL) >> (64 - _CHECK_BITS)
