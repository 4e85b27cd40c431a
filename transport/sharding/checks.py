"""Turns what users and peers say about layouts into arrays, or refuses. Pure.

May import forms, flat, mesh and errors. Messages name the ranks that are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from transport.errors import LayoutError
from transport.sharding.flat import Flat
from transport.sharding.forms import Boxes
from transport.sharding.mesh import listed, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

MAX_DIMENSIONS = 16
_MAX_COMPARED = 1 << 31  # pairs of boxes: seconds
MAX_NUMEL = 1 << 60  # so that offsets in bits stay in 64 bits


def shape_of(shape: Sequence[int]) -> tuple[int, ...]:
    """A tensor's shape. Raises LayoutError for one that cannot be."""
    extents = listed(shape, "the shape of a tensor")
    checked = tuple(whole(extent, "the extent of a tensor's dimension") for extent in extents)
    if len(checked) > MAX_DIMENSIONS or any(extent < 0 for extent in checked):
        raise LayoutError(f"{checked!r:.120} is no shape of a tensor")
    if math.prod(max(extent, 1) for extent in checked) > MAX_NUMEL:
        raise LayoutError(f"a tensor of {checked} is over the limit of {MAX_NUMEL} elements")
    return checked


def check_boxes(
    shape: tuple[int, ...],
    boxes: Mapping[int, Sequence[Any]],
    local_shapes: Mapping[int, Sequence[int]],
) -> Boxes:
    """See `Layout.explicit`."""
    rank = len(shape)
    rows: list[tuple[int, Any, Any, Any]] = []
    locals_: dict[int, tuple[int, ...]] = {}
    for holder in _holders(boxes, local_shapes):
        given = [
            box
            for box in map(_box, listed(boxes.get(holder, ()), "the boxes of a rank"))
            if 0 not in box[1]
        ]
        locals_[holder] = _local_shape(holder, given, local_shapes, rank)
        for offset, size, *at in given:
            rows.append((holder, offset, size, at[0] if at else (0,) * rank))
    holders = _array([row[0] for row in rows], (len(rows),))
    columns = [_array([row[column] for row in rows], (len(rows), rank)) for column in (1, 2, 3)]
    ranks = _array(sorted(locals_), (len(locals_),))
    local = _array([locals_[int(holder)] for holder in ranks], (len(ranks), rank))
    return checked_boxes(shape, ranks, local, holders, *columns)


def _holders(boxes: Any, local_shapes: Any) -> list[int]:
    for given, of in ((boxes, "boxes"), (local_shapes, "local shapes")):
        if not isinstance(given, Mapping):
            raise LayoutError(f"{of} are given by rank, as in {{0: ...}}, not as {given!r:.80}")
    return sorted(whole(rank, "a rank") for rank in {*boxes, *local_shapes})


def _box(given: Any) -> tuple[Any, ...]:
    box = listed(given, "a box")
    if len(box) not in (2, 3):
        raise LayoutError(f"a box is (offset, size) or (offset, size, at), not {given!r:.80}")
    return tuple(listed(numbers, "a box's offset, size and place") for numbers in box)


def _local_shape(
    rank: int,
    boxes: Sequence[Any],
    local_shapes: Mapping[int, Sequence[int]],
    dimensions: int,
) -> tuple[int, ...]:
    if rank in local_shapes:
        return shape_of(local_shapes[rank])
    if not boxes:
        return (0,) * dimensions
    if len(boxes) > 1 or len(boxes[0]) > 2:
        raise LayoutError(f"the local shape of rank {rank} is needed: its boxes do not tell it")
    return shape_of(boxes[0][1])


def _array(values: Any, shape: tuple[int, ...]) -> Ints:
    try:
        array = np.array(values, np.int64).reshape(shape)
    except (ValueError, TypeError, OverflowError):
        raise LayoutError(
            f"boxes that do not have {shape[-1]} dimensions: {values!r:.120}"
        ) from None
    return array


def checked_boxes(
    shape: tuple[int, ...],
    ranks: Ints,
    local_shapes: Ints,
    rank: Ints,
    offset: Ints,
    size: Ints,
    at: Ints,
) -> Boxes:
    """The form of these boxes. Raises LayoutError for boxes outside or in each other's place."""
    _check_ranks(ranks)
    bounds = np.array(shape, np.int64)
    _refuse(rank, (size <= 0) | (offset < 0) | (offset > bounds - size), f"leaves {list(shape)}")
    row = np.minimum(np.searchsorted(ranks, rank), max(len(ranks) - 1, 0))
    _refuse(rank, (ranks[row] != rank)[:, None], "is of a rank that takes no part")
    local = local_shapes[row]
    _refuse(rank, (at < 0) | (at > local - size), "leaves the rank's local tensor")
    pair = overlapping(rank, at, size)
    if pair is not None:
        raise LayoutError(f"boxes of rank {rank[pair[0]]} overlap in the local tensor")
    return Boxes(ranks, local_shapes, rank, offset, size, at)


def _check_ranks(ranks: Ints) -> None:
    if len(ranks) and (ranks[0] < 0 or (np.diff(ranks) <= 0).any()):
        raise LayoutError("ranks are >= 0, and each is described once")


def _refuse(rank: Ints, wrong: NDArray[np.bool_], why: str) -> None:
    bad = np.unique(rank[wrong.any(axis=1)])
    if len(bad):
        raise LayoutError(f"a box of {ranks_text(bad)} {why}")


def ranks_text(ranks: Ints) -> str:
    """ "rank 3", or "ranks 3, 4, 7 and 20 more"."""
    shown = ", ".join(str(int(rank)) for rank in ranks[:8])
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


def overlapping(rank: Ints, at: Ints, size: Ints) -> tuple[int, int] | None:
    """Two boxes that share an element of a rank's local tensor, if there are such."""
    axis = _most_cut(at)
    order = np.argsort(rank, kind="stable") if axis is None else np.lexsort((at[:, axis], rank))
    rank, at, end = rank[order], at[order], (at + size)[order]
    for step in range(1, len(rank)):
        near = rank[step:] == rank[:-step]
        if axis is not None:
            near &= at[step:, axis] < end[:-step, axis]
        if not near.any():
            return None
        both = (at[step:] < end[:-step]).all(axis=1) & (at[:-step] < end[step:]).all(axis=1)
        bad = np.flatnonzero(near & both)
        if len(bad):
            return int(order[bad[0]]), int(order[bad[0] + step])
        if step * len(rank) > _MAX_COMPARED:
            raise LayoutError(f"{len(rank)} boxes are too many that begin beside each other")
    return None


def _most_cut(at: Ints) -> int | None:
    """The dimension in which boxes begin at the most places, so that few are beside each other."""
    if not at.size:
        return None
    return int(np.argmax([len(np.unique(column)) for column in at.T]))


def check_flat(
    shape: tuple[int, ...], ranks: Any, numel: Any, start: Any, first: Any, count: Any
) -> Flat:
    """See `Layout.flat`."""
    try:
        columns = np.broadcast_arrays(
            *(np.atleast_1d(np.asarray(a, np.int64)) for a in (ranks, numel, start, first, count))
        )
    except (ValueError, TypeError, OverflowError):
        raise LayoutError("a flat layout has one rank, range and buffer size per rank") from None
    order = np.argsort(columns[0], kind="stable")
    return checked_flat(shape, *(column[order] for column in columns))


def checked_flat(
    shape: tuple[int, ...], ranks: Ints, numel: Ints, start: Ints, first: Ints, count: Ints
) -> Flat:
    """The form of these ranges. Raises LayoutError for ranges outside."""
    _check_ranks(ranks)
    outside = (count < 0) | (first < 0) | (first > math.prod(shape) - count)
    _refuse(ranks, outside[:, None], f"leaves the {math.prod(shape)} elements of {list(shape)}")
    outside = (start < 0) | (start > numel - count)
    _refuse(ranks, outside[:, None], "leaves the rank's buffer")
    return Flat(ranks, numel, start, first, count)
