"""Arithmetic on many boxes at once: which overlap, what they share, which are alike. Pure numpy.

May import nothing of this package. A box is a row of two int64 arrays of shape (n, d): `low`, its
first index, and `high`, one past its last. With d = 0 there is one box: the scalar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]
    Bools: TypeAlias = NDArray[np.bool_]

_CHUNK = 1 << 20  # candidate pairs looked at together: bounds the temporary memory, some 50 MB


class Overlap(NamedTuple):
    """m pairs of boxes that share elements, sorted by b and then a."""

    a: Ints  # (m,) box of the first list
    b: Ints  # (m,) box of the second
    low: Ints  # (m, d) what they share
    high: Ints  # (m, d)
    elements: Ints  # (m,) how much that is


def volume(low: Ints, high: Ints) -> Ints:
    """Elements of each box, (n,)."""
    made: Ints = np.prod(high - low, axis=1, dtype=np.int64)
    return made


def sums(index: Ints, values: Ints, size: int) -> Ints:
    """(size,): the sum of the values that have each index. Exact, whatever the order."""
    made = np.zeros(size, np.int64)
    np.add.at(made, index, values)
    return made


def ranges(first: Ints, count: Ints) -> tuple[Ints, Ints]:
    """The numbers first[i], first[i] + 1, ... of which there are count[i], and their i."""
    row = np.repeat(np.arange(len(count)), count)
    step = np.arange(len(row)) - np.repeat(count.cumsum() - count, count)
    return first[row] + step, row


def distinct(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """A row of each different box, in lexicographic order, and for every box the place there."""
    rows = np.concatenate((low, high), axis=1)
    if not rows.shape[1] or len(rows) < 2:
        return np.arange(min(len(rows), 1)), np.zeros(len(rows), np.int64)
    order = np.lexsort(rows.T[::-1])
    rows = rows[order]
    fresh = np.ones(len(rows), bool)
    fresh[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    place = np.empty(len(rows), np.int64)
    place[order] = fresh.cumsum() - 1
    return order[fresh], place


def overlap(a_low: Ints, a_high: Ints, b_low: Ints, b_high: Ints) -> Overlap:
    """All pairs of a box of the first list and one of the second that share elements.

    The first list is sorted along the dimension in which it is cut most; for each box of the second
    only a range of it is looked at. The cost is that of the pairs in these ranges.
    """
    found = [pairs for pairs in _candidates(a_low, a_high, b_low, b_high) if len(pairs[0])]
    a, b = (np.concatenate([p[i] for p in found] or [np.zeros(0, np.int64)]) for i in (0, 1))
    order = np.lexsort((a, b))
    a, b = a[order], b[order]
    low, high = np.maximum(a_low[a], b_low[b]), np.minimum(a_high[a], b_high[b])
    return Overlap(a, b, low, high, volume(low, high))


def _candidates(
    a_low: Ints, a_high: Ints, b_low: Ints, b_high: Ints
) -> Iterator[tuple[Ints, Ints]]:
    first, count, order = _near(a_low, a_high, b_low, b_high)
    chunk = (count.cumsum() - count) // _CHUNK
    starts = np.flatnonzero(np.diff(chunk, prepend=-1))
    for low, high in zip(starts, np.append(starts[1:], len(count))):
        at, b = ranges(first[low:high], count[low:high])
        a, b = order[at], b + low
        for dim in range(a_low.shape[1]):
            shared = (a_low[a, dim] < b_high[b, dim]) & (a_high[a, dim] > b_low[b, dim])
            if not shared.all():
                a, b = a[shared], b[shared]
        yield a, b


def _near(a_low: Ints, a_high: Ints, b_low: Ints, b_high: Ints) -> tuple[Ints, Ints, Ints]:
    """Per box of the second list: the range of the sorted first list in which its partners are."""
    if not a_low.shape[1] or not len(a_low):
        whole = np.full(len(b_low), len(a_low))
        return np.zeros_like(whole), whole, np.arange(len(a_low))
    dim = int(np.argmax([len(np.unique(column)) for column in a_low.T]))
    order = np.argsort(a_low[:, dim], kind="stable")
    ends = np.maximum.accumulate(a_high[order, dim])
    first = np.searchsorted(ends, b_low[:, dim], "right")
    last = np.searchsorted(a_low[order, dim], b_high[:, dim], "left")
    return first, np.maximum(last - first, 0), order
