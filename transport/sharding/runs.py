"""Which indices of one dimension each place of a mesh holds, as runs. Pure; imports errors.

Two arrays of shape (places, runs) hold first index and length; the local index is counted along
the runs of a row, and a run of length 0 is none. All places are worked out at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from transport.errors import LayoutError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Runs: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]
    """First indices and lengths."""


MAX_NUMBERS = 1 << 22
"""Of one layout, in an array of its pieces: a bound for descriptions from outside. Three dimensions
on as many ranks as a mesh may have fit in it."""


def bounded(count: int) -> None:
    """Raises LayoutError for more than any real layout has, before memory is taken.

    `count` is of pieces times their dimensions.
    """
    if count > MAX_NUMBERS:
        raise LayoutError(f"the pieces of a layout have {count} indices, over {MAX_NUMBERS}")


def shard(extent: int, cuts: Sequence[tuple[int, int]]) -> Runs:
    """The runs of a dimension of `extent` that is cut along mesh dimensions, one after the other.

    Each cut is (places along the mesh dimension, split factor). The rows are the places in
    row-major order of the cuts.
    """
    runs = np.zeros((1, 1), np.int64), np.full((1, 1), extent, np.int64)
    for places, split in cuts:
        bounded(len(runs[0]) * places * min(split, max(extent, 1)) * runs[0].shape[1])
        low, high = _segments(runs[1].sum(axis=1), places, split)
        first, length = (np.repeat(array, places, axis=0) for array in runs)
        runs = _compact(*_take(first, length, low, high))
    return runs


def chunks(extent: NDArray[np.int64], count: int) -> Runs:
    """First and one-past-last index of each of `count` chunks, as `torch.chunk` makes them.

    A new last axis of `count`; chunks that torch would not return are empty.
    """
    step = -(-extent // count)[..., None]
    edge = np.minimum(step * np.arange(count + 1), extent[..., None])
    return edge[..., :-1], edge[..., 1:]


def _segments(extent: NDArray[np.int64], places: int, split: int) -> Runs:
    """Per row and place the segments of a row that the place takes: (rows * places, split)."""
    # Beyond the longest row chunks are empty: a split factor larger than that is no different.
    split = max(1, min(split, int(extent.max(initial=0))))
    outer_low, outer_high = chunks(extent, split)
    low, high = chunks(outer_high - outer_low, places)
    return (
        (low + outer_low[..., None]).swapaxes(1, 2).reshape(-1, split),
        (high + outer_low[..., None]).swapaxes(1, 2).reshape(-1, split),
    )


def _take(
    first: NDArray[np.int64],
    length: NDArray[np.int64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
) -> Runs:
    """The parts of each row's runs between the local indices low and high, segment by segment."""
    end = length.cumsum(axis=1)
    begin = end - length
    inner_low = np.maximum(low[:, :, None], begin[:, None, :])
    inner_high = np.minimum(high[:, :, None], end[:, None, :])
    rows = len(first)
    taken = (first - begin)[:, None, :] + inner_low
    return taken.reshape(rows, -1), np.maximum(inner_high - inner_low, 0).reshape(rows, -1)


def _compact(first: NDArray[np.int64], length: NDArray[np.int64]) -> Runs:
    """Without the empty runs, and with neighbours joined."""
    rows = len(first)
    row, column = np.nonzero(length)
    first, length = first[row, column], length[row, column]
    fresh = np.ones(len(row), bool)
    fresh[1:] = (row[1:] != row[:-1]) | (first[1:] != first[:-1] + length[:-1])
    kept = np.flatnonzero(fresh)
    length = np.add.reduceat(length, kept) if len(kept) else length
    row, first = row[kept], first[kept]
    counts = np.bincount(row, minlength=rows)
    column = np.arange(len(row)) - (counts.cumsum() - counts)[row]
    width = max(1, int(counts.max(initial=0)))
    dense = np.zeros((2, rows, width), np.int64)
    dense[0, row, column], dense[1, row, column] = first, length
    return dense[0], dense[1]
