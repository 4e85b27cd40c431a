"""The ways in which a layout is described, each of which works out its table. Pure.

May import mesh, placement, pieces, runs and errors. A form is immutable, and its `key` digests its
content; the shape of the tensor belongs to the layout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from transport.errors import LayoutError
from transport.sharding.mesh import frozen
from transport.sharding.pieces import Pieces
from transport.sharding.placement import Placement, Replicate, StridedShard
from transport.sharding.runs import shard

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transport.sharding.layout import Layout
    from transport.sharding.mesh import Mesh

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Table:
    """What every form comes to; the ranks are sorted."""

    ranks: Ints  # (r,)
    local_shapes: Ints  # (r, dimensions of a local tensor)
    pieces: Pieces


class Form(Protocol):
    """One way to describe a layout."""

    @property
    def key(self) -> bytes: ...

    def table(self, shape: tuple[int, ...]) -> Table: ...


def digest(*parts: Any) -> bytes:
    """A digest of numbers, strings, bytes and arrays, in which no two lists of them are alike."""
    made = blake2b(digest_size=16)
    for part in parts:
        body = part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode()
        made.update(len(body).to_bytes(8, "little"))
        made.update(body)
    return made.digest()


def row_major(shapes: Ints) -> Ints:
    """Strides in elements of tensors of these shapes, which lie along the last axis."""
    strides = np.ones_like(shapes)
    if shapes.shape[-1] > 1:
        strides[..., :-1] = np.cumprod(shapes[..., :0:-1], axis=-1)[..., ::-1]
    return strides


class Placed:
    """A mesh and one placement per mesh dimension."""

    __slots__ = ("key", "mesh", "placements")

    def __init__(self, mesh: Mesh, placements: tuple[Placement, ...]) -> None:
        self.mesh = mesh
        self.placements = placements
        self.key = digest("placed", mesh.key, placements)

    def table(self, shape: tuple[int, ...]) -> Table:
        order = np.argsort(self.mesh.ranks, axis=None)
        places = np.unravel_index(order, self.mesh.shape) if self.mesh.shape else ()
        runs = [self._runs(dim, extent, places, len(order)) for dim, extent in enumerate(shape)]
        ranks = self.mesh.ranks.ravel()[order]
        local = np.ones((len(order), len(shape)), np.int64)
        for dim, (_, length) in enumerate(runs):
            local[:, dim] = length.sum(axis=1)
        return Table(frozen(ranks), frozen(local), _product(ranks, local, runs))

    def _runs(self, dim: int, extent: int, places: tuple[Any, ...], ranks: int) -> Any:
        """Of one dimension of the tensor, a row per rank."""
        cuts: list[tuple[int, int]] = []
        row = np.zeros(ranks, np.int64)
        for axis, placement in enumerate(self.placements):
            if isinstance(placement, Replicate) or placement.dim != dim:
                continue
            split = placement.split_factor if isinstance(placement, StridedShard) else 1
            cuts.append((self.mesh.shape[axis], split))
            row = row * self.mesh.shape[axis] + places[axis]
        first, length = shard(extent, cuts)
        return first[row], length[row]


def _product(ranks: Ints, local: Ints, runs: list[tuple[Ints, Ints]]) -> Pieces:
    """Every combination of a run along each dimension is a piece."""
    count, rank = local.shape
    valid = np.ones((count, *(length.shape[1] for _, length in runs)), bool)
    for dim, (_, length) in enumerate(runs):
        axes = [1] * rank
        axes[dim] = -1
        valid &= (length > 0).reshape(count, *axes)
    row, *columns = np.nonzero(valid) if rank else (np.arange(count),)
    offset, size, at = np.empty((3, len(row), rank), np.int64)
    for dim, ((first, length), column) in enumerate(zip(runs, columns)):
        offset[:, dim] = first[row, column]
        size[:, dim] = length[row, column]
        at[:, dim] = (length.cumsum(axis=1) - length)[row, column]
    stride = row_major(local)[row]
    return Pieces(ranks[row], offset, size, (at * stride).sum(axis=1), stride)


class Boxes:
    """Boxes one by one: `at` is where each begins in its rank's local tensor."""

    __slots__ = ("at", "key", "local_shapes", "offset", "rank", "ranks", "size")

    def __init__(
        self, ranks: Ints, local_shapes: Ints, rank: Ints, offset: Ints, size: Ints, at: Ints
    ) -> None:
        order = np.lexsort((*at.T[::-1], rank)) if len(rank) else np.zeros(0, np.int64)
        self.ranks, self.local_shapes = frozen(ranks), frozen(local_shapes)
        self.rank, self.offset = frozen(rank[order]), frozen(offset[order])
        self.size, self.at = frozen(size[order]), frozen(at[order])
        self.key = digest("boxes", *self.arrays())

    def arrays(self) -> tuple[Ints, ...]:
        return self.ranks, self.local_shapes, self.rank, self.offset, self.size, self.at

    def table(self, shape: tuple[int, ...]) -> Table:
        del shape
        local = self.local_shapes[np.searchsorted(self.ranks, self.rank)]
        stride = row_major(local)
        start = (self.at * stride).sum(axis=1)
        pieces = Pieces(self.rank, self.offset, self.size, start, stride)
        return Table(self.ranks, self.local_shapes, pieces)


class Flat:
    """A range of the flattened tensor per rank, in a local buffer of one dimension."""

    __slots__ = ("count", "first", "key", "numel", "ranks", "start")

    def __init__(self, ranks: Ints, numel: Ints, start: Ints, first: Ints, count: Ints) -> None:
        self.ranks, self.numel, self.start = frozen(ranks), frozen(numel), frozen(start)
        self.first, self.count = frozen(first), frozen(count)
        self.key = digest("flat", *self.arrays())

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
    rank = len(shape)
    if not rank:
        raise LayoutError("a tensor without dimensions is not sharded flat: describe it as whole")
    row = np.concatenate([number for number, *_ in found])
    first = np.concatenate([begin for _, begin, *_ in found])
    lows: list[Ints] = []
    highs: list[Ints] = []
    for _, begin, end, dim, span in found:
        low = (
            np.stack(np.unravel_index(begin, shape), axis=1) if len(begin) else np.zeros((0, rank))
        )
        high = low + 1
        high[:, dim] = low[:, dim] + (end - begin) // span
        high[:, dim + 1 :] = shape[dim + 1 :]
        lows.append(low.astype(np.int64))
        highs.append(high.astype(np.int64))
    order = np.lexsort((first, row))
    return row[order], np.concatenate(lows)[order], np.concatenate(highs)[order]


class Part:
    """A box of another layout's tensor as a tensor of its own, in the same local tensors."""

    __slots__ = ("base", "key", "offset", "size")

    def __init__(self, base: Layout, offset: tuple[int, ...], size: tuple[int, ...]) -> None:
        self.base, self.offset, self.size = base, offset, size
        self.key = digest("part", base.key, offset, size)

    def table(self, shape: tuple[int, ...]) -> Table:
        del shape
        table, offset = self.base.table, np.array(self.offset, np.int64)
        whole = table.pieces
        low = np.maximum(whole.offset, offset)
        high = np.minimum(whole.offset + whole.size, offset + np.array(self.size, np.int64))
        kept = np.flatnonzero((high > low).all(axis=1))
        low, high, stride = low[kept], high[kept], whole.stride[kept]
        start = whole.start[kept] + ((low - whole.offset[kept]) * stride).sum(axis=1)
        pieces = Pieces(whole.rank[kept], low - offset, high - low, start, stride)
        return Table(table.ranks, table.local_shapes, pieces)
