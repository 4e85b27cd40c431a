"""Boxes as copies between local tensors: laid out, stripped of what is contiguous, joined. Pure.

May import boxes and pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from transport.sharding.boxes import Bools, Ints
    from transport.sharding.pieces import Pieces


class Copies(NamedTuple):
    """n copies of up to D dimensions between two local tensors; starts and strides in elements."""

    size: Ints  # (n, D)
    source_start: Ints  # (n,)
    source_stride: Ints  # (n, D)
    target_start: Ints
    target_stride: Ints

    def take(self, rows: Ints) -> Copies:
        return Copies(*(array[rows] for array in self))

    def widened(self, dimensions: int) -> Copies:
        """With more leading dimensions, of one element each."""
        extra = ((0, 0), (dimensions - self.size.shape[1], 0))
        if not extra[1][0]:
            return self
        return self._replace(
            size=np.pad(self.size, extra, constant_values=1),
            source_stride=np.pad(self.source_stride, extra),
            target_stride=np.pad(self.target_stride, extra),
        )


def lay(
    low: Ints, high: Ints, source: Pieces, source_piece: Ints, target: Pieces, target_piece: Ints
) -> Copies:
    """Boxes, each within one piece of each side, as copies in their simplest form."""
    size = high - low
    stride = source.stride[source_piece], target.stride[target_piece]
    start = (
        source.start[source_piece] + ((low - source.offset[source_piece]) * stride[0]).sum(axis=1),
        target.start[target_piece] + ((low - target.offset[target_piece]) * stride[1]).sum(axis=1),
    )
    if not size.shape[1]:  # a scalar
        size = np.ones((len(low), 1), np.int64)
        stride = (size, size)
    return _simplest(Copies(size, start[0], stride[0], start[1], stride[1]))


def _simplest(copies: Copies) -> Copies:
    """Dimensions that are contiguous on both sides become one.

    What is left are the last dimensions, by descending strides of the target; those before have one
    element and stride 0. The last has stride 1 where it has one element.
    """
    size, strides = copies.size.copy(), (copies.source_stride.copy(), copies.target_stride.copy())
    if (strides[1][:, 1:] > strides[1][:, :-1]).any():  # a local tensor is transposed
        order = np.argsort(-strides[1], axis=1, kind="stable")
        for array in (size, *strides):
            array[...] = np.take_along_axis(array, order, axis=1)
    for outer in range(size.shape[1] - 2, -1, -1):
        for _ in range(outer + 1):  # once merged, what was further out is next
            _merge(size, strides, outer)
    used = (size > 1).any(axis=0)
    first = int(used.argmax()) if used.any() else size.shape[1] - 1
    source, target = (stride[:, first:] for stride in strides)
    size = size[:, first:]
    for stride in (source, target):
        stride[size[:, -1] == 1, -1] = 1
    return Copies(size, copies.source_start, source, copies.target_start, target)


def _merge(size: Ints, strides: tuple[Ints, Ints], outer: int) -> None:
    """Merges a dimension into the one after it, where that can be, and moves the outer ones in."""
    inner = outer + 1
    empty = size[:, inner] == 1
    near = np.ones(len(size), bool)
    for stride in strides:
        near &= stride[:, outer] == stride[:, inner] * size[:, inner]
        stride[:, inner] = np.where(empty, stride[:, outer], stride[:, inner])
    rows = np.flatnonzero(near | empty | (size[:, outer] == 1))
    size[rows, inner] *= size[rows, outer]
    for array, unused in ((size, 1), (strides[0], 0), (strides[1], 0)):
        array[rows, 1:inner] = array[rows, :outer]
        array[rows, 0] = unused


def joined(copies: Copies, *keys: Ints) -> tuple[Copies, Ints]:
    """Copies that continue each other, or follow in equal steps, become one.

    Only such whose keys are all equal. Returns them sorted by the keys and their place in the
    target, and which of the given copies each of them begins with.
    """
    order = np.lexsort((copies.target_start, *keys[::-1]))
    copies, kept = copies.take(order), order
    while True:
        before = len(kept)
        for dim in range(copies.size.shape[1] - 1, -1, -1):
            first = np.flatnonzero(~_continues(copies, dim, [key[kept] for key in keys]))
            if len(first) < len(kept):
                length = np.add.reduceat(copies.size[:, dim], first)
                copies, kept = copies.take(first), kept[first]
                copies.size[:, dim] = length
        if len(kept) == before:
            copies, first = _stacked(copies, [key[kept] for key in keys])
            kept = kept[first]
        if len(kept) == before:
            return copies, kept
        copies = _simplest(copies)


def _alike(copies: Copies, keys: list[Ints]) -> Bools:
    """(n,) whether each copy has the strides and keys of the one before it."""
    alike = np.zeros(len(copies.size), bool)
    alike[1:] = True
    for array in (copies.source_stride, copies.target_stride):
        alike[1:] &= (array[1:] == array[:-1]).all(axis=1)
    for key in keys:
        alike[1:] &= key[1:] == key[:-1]
    return alike


def _continues(copies: Copies, dim: int, keys: list[Ints]) -> Bools:
    """(n,) whether each copy continues the one before it along a dimension."""
    more, size = _alike(copies, keys), copies.size
    others = np.delete(size, dim, axis=1)
    more[1:] &= (others[1:] == others[:-1]).all(axis=1)
    for start, stride in (copies[1:3], copies[3:5]):
        more[1:] &= start[1:] - start[:-1] == size[:-1, dim] * stride[:-1, dim]
    return more


def _stacked(copies: Copies, keys: list[Ints]) -> tuple[Copies, Ints]:
    """Each run of copies of one shape in equal steps on both sides as one copy, and its first.

    Where two runs share a copy, it is of the earlier one.
    """
    link = _alike(copies, keys)
    link[1:] &= (copies.size[1:] == copies.size[:-1]).all(axis=1)
    steps = [np.diff(start, prepend=0) for start in (copies.source_start, copies.target_start)]
    link &= (steps[0] > 0) & (steps[1] > 0)
    if not link.any():
        return copies, np.arange(len(link))
    again = link.copy()  # whether it is as far from the one before as that is from its own
    again[1:] &= link[:-1] & (steps[0][1:] == steps[0][:-1]) & (steps[1][1:] == steps[1][:-1])
    begins = link & ~again
    begins[1:] &= ~link[:-1]
    fresh = ~(again | begins)
    first = np.flatnonzero(fresh)
    length = np.diff(first, append=len(link))
    second = np.minimum(first + 1, len(link) - 1)
    wide = copies.take(first).widened(copies.size.shape[1] + 1)
    wide.size[:, 0] = length
    for stride, step in zip((wide.source_stride, wide.target_stride), steps):
        stride[:, 0] = np.where(length > 1, step[second], 0)
    return wide, first
