"""Ranges of a flattened tensor, as the flat parameters of FSDP1 hold them. Pure.

May import forms, pieces and mesh.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from transport.sharding.forms import Table, digest, row_major
from transport.sharding.mesh import frozen
from transport.sharding.pieces import Pieces

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


class Flat:
    """A range of the flattened tensor per rank, in a local buffer of one dimension."""

    __slots__ = ("count", "first", "key", "numel", "ranks", "start")

    def __init__(self, ranks: Ints, numel: Ints, start: Ints, first: Ints, count: Ints) -> None:
        self.ranks, self.numel, self.start = frozen(ranks), frozen(numel), frozen(start)
        self.first, self.count = frozen(first), frozen(count)
        self.key = digest("flat", *self.arrays())

    def __repr__(self) -> str:
        return f"flattened on {len(self.ranks)} ranks"

    def arrays(self) -> tuple[Ints, ...]:
        return self.ranks, self.numel, self.start, self.first, self.count

    def table(self, shape: tuple[int, ...]) -> Table:
        row, low, high = _boxes_of_ranges(self.first, self.first + self.count, shape)
        stride = np.broadcast_to(row_major(np.array(shape, np.int64)), low.shape)
        start = self.start[row] + (low * stride).sum(axis=1) - self.first[row]
        pieces = Pieces(self.ranks[row], low, high - low, start, stride)
        return Table(self.ranks, frozen(self.numel[:, None]), pieces)


def _boxes_of_ranges(low: Ints, high: Ints, shape: tuple[int, ...]) -> tuple[Ints, Ints, Ints]:
    """The boxes that make up the ranges [low, high) of a flattened tensor of `shape`.

    Returns range number, first and one-past-last index of each, in order. A range is up to
    2 d - 1 boxes: from the inside out, the rest of a row, then of a plane ..., whole ones between.
    """
    rank, found = len(shape), []
    numbers = np.arange(len(low))
    if not rank:
        row = np.flatnonzero(high > low)
        return row, np.zeros((len(row), 0), np.int64), np.zeros((len(row), 0), np.int64)
    inner = [math.prod(shape[dim + 1 :]) for dim in range(rank)]
    for dim in range(rank - 1, -1, -1):
        span, outer = max(inner[dim], 1), max(inner[dim] * shape[dim], 1)
        # The end of the block of the next dimension in which each range begins, and the same below.
        up = np.minimum(-(-low // outer) * outer, high) if dim else high
        down = np.maximum(high // outer * outer, up) if dim else high
        for begin, end in ((low, up), (down, high)):
            whole = end > begin
            found.append((numbers[whole], begin[whole], end[whole], dim, span))
        low, high = up, down
    return _as_boxes(found, shape)


def _as_boxes(found: list[Any], shape: tuple[int, ...]) -> tuple[Ints, Ints, Ints]:
    row = np.concatenate([number for number, *_ in found])
    first = np.concatenate([begin for _, begin, *_ in found])
    lows: list[Ints] = []
    highs: list[Ints] = []
    for _, begin, end, dim, span in found:
        low = np.zeros((len(begin), len(shape)), np.int64)
        if len(begin):  # unravel_index refuses a shape with nothing in it
            low[:] = np.stack(np.unravel_index(begin, shape), axis=1)
        high = low + 1
        high[:, dim] = low[:, dim] + (end - begin) // span
        high[:, dim + 1 :] = shape[dim + 1 :]
        lows.append(low)
        highs.append(high)
    order = np.lexsort((first, row))
    return row[order], np.concatenate(lows)[order], np.concatenate(highs)[order]
