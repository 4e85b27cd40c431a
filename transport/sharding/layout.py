"""One tensor's sharding. Pure; may import forms, checks, memory.dtypes and errors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from transport.errors import LayoutError
from transport.memory.dtypes import ITEMSIZES
from transport.sharding.checks import check_boxes, check_flat, ranks_text, shape_of
from transport.sharding.derived import (
    Interleaved,
    Part,
    Permuted,
    Stacked,
    Union,
    check_stack,
)
from transport.sharding.forms import Form, Placed, Table, digest
from transport.sharding.mesh import Mesh, listed, whole
from transport.sharding.placement import normalised

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from transport.sharding.pieces import Pieces

MAX_DEPTH = 32
"""Layouts made from layouts made from ...; deeper ones come from no model."""


class Layout:
    """Which rank holds which part of one tensor. Immutable, hashable and comparable by content.

    Made by `placed`, `explicit`, `flat` and `whole`, and from other layouts by `part`, `select`,
    `interleaved`, `permuted`, `stacked` and `union`. `key` digests the description: equal
    keys mean equal layouts. Two descriptions that come to the same pieces are not equal.
    """

    __slots__ = ("_table", "depth", "dtype", "form", "key", "shape")

    shape: tuple[int, ...]
    dtype: str
    form: Form
    key: bytes
    depth: int

    def __init__(self, shape: Sequence[int], dtype: Any, form: Form) -> None:
        self.shape = shape_of(shape)
        self.dtype = dtype_name(dtype)
        self.form = form
        self.key = digest(self.shape, self.dtype, form.key)
        self.depth = 1 + max((base.depth for base in getattr(form, "bases", ())), default=0)
        if self.depth > MAX_DEPTH:
            raise LayoutError(f"a layout made from layouts {MAX_DEPTH} times over")
        self._table: Table | None = None

    @classmethod
    def placed(
        cls, shape: Sequence[int], dtype: Any, mesh: Mesh, placements: Iterable[Any]
    ) -> Layout:
        """A mesh and one placement per mesh dimension, applied from left to right as torch does."""
        given: Any = mesh
        if not isinstance(given, Mesh):
            kind = type(given).__name__
            raise LayoutError(f"a mesh is a Mesh, as in Mesh((2, 4), ('dp', 'tp')), not a {kind}")
        shape = shape_of(shape)
        return cls(shape, dtype, Placed(mesh, normalised(placements, mesh.ndim, len(shape))))

    @classmethod
    def whole(cls, shape: Sequence[int], dtype: Any, rank: int = 0) -> Layout:
        """One rank has all of it."""
        shape = shape_of(shape)
        boxes = {rank: [((0,) * len(shape), shape)]}
        return cls.explicit(shape, dtype, boxes, {rank: shape})  # an empty box tells no shape

    @classmethod
    def explicit(
        cls,
        shape: Sequence[int],
        dtype: Any,
        boxes: Mapping[int, Sequence[tuple[Sequence[int], ...]]],
        local_shapes: Mapping[int, Sequence[int]] | None = None,
    ) -> Layout:
        """Boxes one by one: {rank: [(offset, size), ...]}; a rank may hold none.

        A box is (offset, size) or (offset, size, at), where `at` is the index in the rank's local
        tensor at which it begins, its beginning by default. Local shapes are needed for ranks that
        hold none or several, and where a local tensor is larger than its box: padding is nobody's
        data. Raises LayoutError for boxes that leave the tensor or the local tensor, or that
        overlap in it.
        """
        shape = shape_of(shape)
        return cls(shape, dtype, check_boxes(shape, boxes, local_shapes or {}))

    @classmethod
    def flat(
        cls,
        shape: Sequence[int],
        dtype: Any,
        ranks: ArrayLike,
        *,
        first: ArrayLike,
        count: ArrayLike,
        numel: ArrayLike,
        start: ArrayLike = 0,
    ) -> Layout:
        """A range of the flattened tensor per rank, as FSDP1 shards it; arrays, one item per rank.

        Rank r holds elements first[r] to first[r] + count[r] of the tensor in row-major order, from
        element start[r] of a local buffer of numel[r] elements. Raises LayoutError for ranges
        outside.
        """
        shape = shape_of(shape)
        return cls(shape, dtype, check_flat(shape, ranks, numel, start, first, count))

    def part(self, offset: Sequence[int], size: Sequence[int]) -> Layout:
        """That box of it as a tensor of its own, which lies in the same local tensors."""
        low, extent = _box(self, offset, size)
        return _part(self, low, extent, tuple(range(len(extent))))

    def select(self, dim: int, index: int) -> Layout:
        """Its part at one index of a dimension, without that dimension, as `torch.select` does."""
        dim = _axis(self, dim)
        low = tuple(index if axis == dim else 0 for axis in range(len(self.shape)))
        size = tuple(1 if axis == dim else n for axis, n in enumerate(self.shape))
        kept = tuple(axis for axis in range(len(self.shape)) if axis != dim)
        return _part(self, *_box(self, low, size), kept)

    def interleaved(self, dim: int, start: int, length: int, step: int) -> Layout:
        """Of every `step` indices of a dimension the `length` ones from `start` on, as a tensor.

        The dimension is a whole number of steps; raises LayoutError where it is not.
        """
        dim, extent = _axis(self, dim), self.shape[_axis(self, dim)]
        start, length, step = (whole(n, "a step") for n in (start, length, step))
        if step < 1 or start < 0 or length < 0 or start + length > step or extent % step:
            raise LayoutError(
                f"{length} indices from {start} of every {step} do not divide dimension {dim} of "
                f"a {self}"
            )
        shape = (*self.shape[:dim], extent // step * length, *self.shape[dim + 1 :])
        return Layout(shape, self.dtype, Interleaved(self, dim, start, length, step))

    def permuted(self, axes: Sequence[int]) -> Layout:
        """With its dimensions in another order, as `torch.permute`; the local tensors stay."""
        order = tuple(_axis(self, axis) for axis in listed(axes, "an order of dimensions"))
        if sorted(order) != list(range(len(self.shape))):
            raise LayoutError(f"{list(axes)} is no order of the dimensions of a {self}")
        return Layout([self.shape[axis] for axis in order], self.dtype, Permuted(self, order))

    @staticmethod
    def stacked(members: Sequence[Layout], dim: int = 0) -> tuple[Layout, ...]:
        """The members with each rank's local tensors joined along their dimension `dim` into one.

        As serving engines keep a fused qkv: every rank has its rows of q, then of k, then of v.
        Raises LayoutError naming the ranks where the local tensors do not fit together.
        """
        given = _members(members)
        check_stack(given, dim)
        return tuple(
            Layout(member.shape, member.dtype, Stacked(given, dim, index))
            for index, member in enumerate(given)
        )

    @staticmethod
    def union(members: Sequence[Layout]) -> Layout:
        """What several groups of ranks hold of one tensor, each group as its own layout says.

        Pipeline stages and data-parallel replicas whose meshes know nothing of each other. Raises
        LayoutError for different shapes or dtypes, and for a rank in two of them.
        """
        given = tuple(dict.fromkeys(_members(members)))
        if len(given) == 1:
            return given[0]
        if len({(m.shape, m.dtype, m.table.local_shapes.shape[1]) for m in given}) != 1:
            raise LayoutError(f"{', '.join(map(str, given[:8]))} are not one tensor")
        ranks, times = np.unique(np.concatenate([m.ranks for m in given]), return_counts=True)
        if (times > 1).any():
            raise LayoutError(f"{ranks_text(ranks[times > 1])} of a {given[0]}: described twice")
        return Layout(given[0].shape, given[0].dtype, Union(given))

    @property
    def table(self) -> Table:
        """Ranks, local shapes and pieces, worked out at the first use."""
        table = self._table
        if table is None:
            table = self._table = self.form.table(self.shape)
        return table

    @property
    def ranks(self) -> NDArray[np.int64]:
        """Sorted: those that take part, also those with an empty shard."""
        return self.table.ranks

    def pieces(self) -> Pieces:
        """Of all ranks."""
        return self.table.pieces

    def pieces_of(self, rank: int) -> Pieces:
        """Of one rank; none for a rank that does not take part."""
        return self.table.pieces.of(rank)

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """Of the tensor that holds a rank's part. Raises LayoutError where it takes no part."""
        table = self.table
        row = int(np.searchsorted(table.ranks, rank))
        if row == len(table.ranks) or table.ranks[row] != rank:
            raise LayoutError(f"rank {rank} takes no part in a {self}")
        return tuple(table.local_shapes[row].tolist())

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return ITEMSIZES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Of the whole tensor, once."""
        return self.numel * self.itemsize

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, Layout) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> tuple[Any, ...]:
        return Layout, (self.shape, self.dtype, self.form)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    def __repr__(self) -> str:
        return f"<Layout {self} {self.form!r}>"


def _axis(layout: Layout, dim: int) -> int:
    rank = len(layout.shape)
    if not -rank <= whole(dim, "a dimension") < rank:
        raise LayoutError(f"a {layout} has no dimension {dim}")
    return dim % rank


def _members(given: Any) -> tuple[Layout, ...]:
    """Raises LayoutError where these are no layouts."""
    members = listed(given, "layouts")
    if not members or not all(isinstance(it, Layout) for it in members):
        raise LayoutError(f"one Layout or more is wanted, not {given!r:.80}")
    return members


def _box(layout: Layout, offset: Sequence[int], size: Sequence[int]) -> tuple[Any, Any]:
    low = tuple(whole(index, "an offset") for index in listed(offset, "an offset"))
    extent = shape_of(size)
    fits = len(low) == len(extent) == len(layout.shape) and all(
        a >= 0 and a + n <= m for a, n, m in zip(low, extent, layout.shape)
    )
    if not fits:
        raise LayoutError(f"{list(extent)} at {list(low)} is no box of a {layout}")
    return low, extent


def _part(
    base: Layout, offset: tuple[int, ...], size: tuple[int, ...], kept: tuple[int, ...]
) -> Layout:
    """A part of a part is a part of the whole, so that nothing is worked out in between."""
    shape = tuple(size[axis] for axis in kept)
    form = base.form
    if isinstance(form, Part):
        low, extent = list(form.offset), list(form.size)
        for axis, moved, length in zip(form.kept, offset, size):
            low[axis], extent[axis] = low[axis] + moved, length
        offset, size = tuple(low), tuple(extent)
        base, kept = form.base, tuple(form.kept[axis] for axis in kept)
    return Layout(shape, base.dtype, Part(base, offset, size, kept))


def dtype_name(dtype: Any) -> str:
    """The canonical name of a dtype given by name, or of torch's or numpy's.

    Raises LayoutError for unknown ones.
    """
    if isinstance(dtype, str) and dtype in ITEMSIZES:
        return dtype
    name = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    if name not in ITEMSIZES:
        raise LayoutError(f"{dtype!r:.80} is no dtype; the names are those of torch, as bfloat16")
    return name
