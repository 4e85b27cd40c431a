"""The ways in which a layout is described from nothing, each of which works out its table. Pure.

May import mesh, placement, pieces, runs and errors. A form is immutable, and its `key` digests its
content; the shape of the tensor belongs to the layout. Forms that are made from other layouts are
in derived.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from transport.sharding.mesh import frozen
from transport.sharding.pieces import Pieces
from transport.sharding.placement import Placement, Replicate, StridedShard
from transport.sharding.runs import bounded, shard

if TYPE_CHECKING:
    from numpy.typing import NDArray

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

    def __repr__(self) -> str:
        return f"on {self.mesh}: {' '.join(map(str, self.placements))}"

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
    bounded(count * math.prod(length.shape[1] for _, length in runs) * rank)
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

    def __repr__(self) -> str:
        return f"in {len(self.rank)} boxes on {len(self.ranks)} ranks"

    def arrays(self) -> tuple[Ints, ...]:
        return self.ranks, self.local_shapes, self.rank, self.offset, self.size, self.at

    def table(self, shape: tuple[int, ...]) -> Table:
        del shape
        local = self.local_shapes[np.searchsorted(self.ranks, self.rank)]
        stride = row_major(local)
        start = (self.at * stride).sum(axis=1)
        pieces = Pieces(self.rank, self.offset, self.size, start, stride)
        return Table(self.ranks, self.local_shapes, pieces)
