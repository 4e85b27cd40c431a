"""One tensor's sharding. Pure; may import forms, checks, memory.dtypes and errors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from transport.errors import LayoutError
from transport.memory.dtypes import ITEMSIZES
from transport.sharding.checks import check_boxes, check_flat, shape_of
from transport.sharding.forms import Form, Part, Placed, Table, digest
from transport.sharding.mesh import Mesh, whole
from transport.sharding.placement import normalised

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from transport.sharding.pieces import Pieces


class Layout:
    """Which rank holds which part of one tensor. Immutable, hashable and comparable by content.

    Made by `placed`, `explicit`, `flat`, `whole` and `part`. `key` digests the description: equal
    keys mean equal layouts. Two descriptions that come to the same pieces are not equal.
    """

    __slots__ = ("_table", "dtype", "form", "key", "shape")

    shape: tuple[int, ...]
    dtype: str
    form: Form
    key: bytes

    def __init__(self, shape: Sequence[int], dtype: Any, form: Form) -> None:
        self.shape = shape_of(shape)
        self.dtype = dtype_name(dtype)
        self.form = form
        self.key = digest(self.shape, self.dtype, form.key)
        self._table: Table | None = None

    @classmethod
    def placed(
        cls, shape: Sequence[int], dtype: Any, mesh: Mesh, placements: Iterable[Any]
    ) -> Layout:
        """A mesh and one placement per mesh dimension, applied from left to right as torch does."""
        shape = shape_of(shape)
        return cls(shape, dtype, Placed(mesh, normalised(placements, mesh.ndim, len(shape))))

    @classmethod
    def whole(cls, shape: Sequence[int], dtype: Any, rank: int = 0) -> Layout:
        """One rank has all of it."""
        shape = shape_of(shape)
        return cls.explicit(shape, dtype, {rank: [((0,) * len(shape), shape)]})

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
        low = tuple(whole(index, "an offset") for index in offset)
        extent = shape_of(size)
        fits = len(low) == len(extent) == len(self.shape) and all(
            a >= 0 and a + n <= m for a, n, m in zip(low, extent, self.shape)
        )
        if not fits:
            raise LayoutError(f"{list(extent)} at {list(low)} is no box of a {self}")
        return Layout(extent, self.dtype, Part(self, low, extent))

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
