"""Forms that are made from other layouts, in whose local tensors they lie. Pure.

May import checks, forms, pieces, mesh and errors. None of them copies anything: a part of a fused
tensor is where the fused tensor is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from transport.errors import LayoutError
from transport.sharding.checks import MAX_NUMEL, ranks_text
from transport.sharding.forms import Table, digest
from transport.sharding.mesh import frozen
from transport.sharding.pieces import Pieces
from transport.sharding.runs import bounded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transport.sharding.layout import Layout

    Ints = NDArray[np.int64]


class Part:
    """A box of the base's tensor as a tensor of its own; `kept` are the dimensions that it keeps.

    The others have an extent of 1 in the box: an expert's matrix in a tensor of all experts.
    """

    __slots__ = ("base", "kept", "key", "offset", "size")

    def __init__(
        self, base: Layout, offset: tuple[int, ...], size: tuple[int, ...], kept: tuple[int, ...]
    ) -> None:
        self.base, self.offset, self.size, self.kept = base, offset, size, kept
        self.key = digest("part", base.key, offset, size, kept)

    @property
    def bases(self) -> tuple[Layout, ...]:
        return (self.base,)

    def table(self, shape: tuple[int, ...]) -> Table:
        del shape
        table, offset = self.base.table, np.array(self.offset, np.int64)
        of = table.pieces
        low = np.maximum(of.offset, offset)
        high = np.minimum(of.offset + of.size, offset + np.array(self.size, np.int64))
        row = np.flatnonzero((high > low).all(axis=1))
        low, high, stride = low[row], high[row], of.stride[row]
        start = of.start[row] + ((low - of.offset[row]) * stride).sum(axis=1)
        kept = list(self.kept)
        columns = (low - offset)[:, kept], (high - low)[:, kept], start, stride[:, kept]
        return Table(table.ranks, table.local_shapes, Pieces(of.rank[row], *columns))

    def __repr__(self) -> str:
        return f"at {list(self.offset)} of {self.base}"


class Interleaved:
    """Every `step` indices of a dimension, `length` of them from `start` on.

    The q of a fused qkv whose dimension goes q k v q k v ..., one group per rank or per head.
    """

    __slots__ = ("base", "dim", "key", "length", "start", "step")

    def __init__(self, base: Layout, dim: int, start: int, length: int, step: int) -> None:
        self.base, self.dim = base, dim
        self.start, self.length, self.step = start, length, step
        self.key = digest("interleaved", base.key, dim, start, length, step)

    @property
    def bases(self) -> tuple[Layout, ...]:
        return (self.base,)

    def table(self, shape: tuple[int, ...]) -> Table:
        del shape
        table, dim = self.base.table, self.dim
        of = table.pieces
        row, group = self._groups(of.offset[:, dim], of.size[:, dim])
        begin = group * self.step + self.start
        low = np.maximum(of.offset[row, dim], begin)
        high = np.minimum(of.offset[row, dim] + of.size[row, dim], begin + self.length)
        held = high > low
        row, low, high, begin, group = (a[held] for a in (row, low, high, begin, group))
        offset, size, stride = of.offset[row], of.size[row], of.stride[row]
        start = of.start[row] + (low - offset[:, dim]) * stride[:, dim]
        offset[:, dim] = group * self.length + low - begin
        size[:, dim] = high - low
        return Table(
            table.ranks, table.local_shapes, Pieces(of.rank[row], offset, size, start, stride)
        )

    def _groups(self, offset: Ints, size: Ints) -> tuple[Ints, Ints]:
        """Pairs of a piece and a group of `step` indices that it reaches into."""
        first = offset // self.step
        count = (offset + size - 1) // self.step - first + 1
        bounded(int(count.sum()) * len(self.base.shape))
        row = np.repeat(np.arange(len(count)), count)
        return row, first[row] + np.arange(len(row)) - (count.cumsum() - count)[row]

    def __repr__(self) -> str:
        return f"{self.length} of every {self.step} along dimension {self.dim} of {self.base}"


class Permuted:
    """The base's tensor with its dimensions in another order: dimension i is its axes[i]."""

    __slots__ = ("axes", "base", "key")

    def __init__(self, base: Layout, axes: tuple[int, ...]) -> None:
        self.base, self.axes = base, axes
        self.key = digest("permuted", base.key, axes)

    @property
    def bases(self) -> tuple[Layout, ...]:
        return (self.base,)

    def table(self, shape: tuple[int, ...]) -> Table:
        del shape
        table, axes = self.base.table, list(self.axes)
        of = table.pieces
        columns = of.offset[:, axes], of.size[:, axes], of.start, of.stride[:, axes]
        return Table(table.ranks, table.local_shapes, Pieces(of.rank, *columns))

    def __repr__(self) -> str:
        return f"{self.base} permuted to {list(self.axes)}"


class Stacked:
    """Member `index` of tensors whose local tensors lie one after the other in one local tensor.

    As vLLM's qkv_proj: every rank has its rows of q, then its rows of k, then its rows of v.
    """

    __slots__ = ("dim", "index", "key", "members")

    def __init__(self, members: tuple[Layout, ...], dim: int, index: int) -> None:
        self.members, self.dim, self.index = members, dim, index
        self.key = digest("stacked", *(member.key for member in members), dim, index)

    @property
    def bases(self) -> tuple[Layout, ...]:
        return self.members

    def table(self, shape: tuple[int, ...]) -> Table:
        del shape
        tables, dim = [member.table for member in self.members], self.dim
        mine = tables[self.index]
        extents = np.stack([table.local_shapes[:, dim] for table in tables])
        at, together = extents[: self.index].sum(axis=0), extents.sum(axis=0)
        local = mine.local_shapes.copy()
        local[:, dim] = together
        # An element of the old local tensor is `rest` within the `outer`th block of the old size.
        inner = mine.local_shapes[:, dim + 1 :].prod(axis=1)
        old, new = inner * extents[self.index], inner * together
        of = mine.pieces
        row = np.searchsorted(mine.ranks, of.rank)
        old, new, inner, at = old[row], new[row], inner[row], at[row]
        start = of.start // old * new + at * inner + of.start % old
        outer = (of.stride % old[:, None] == 0) & (of.size > 1)
        stride = np.where(outer, of.stride // old[:, None] * new[:, None], of.stride)
        pieces = Pieces(of.rank, of.offset, of.size, start, stride)
        return Table(mine.ranks, frozen(local), pieces)

    def __repr__(self) -> str:
        return f"stacked {self.index + 1} of {len(self.members)} along dimension {self.dim}"


def check_stack(members: tuple[Layout, ...], dim: int) -> None:
    """Raises LayoutError where the members' local tensors are not alike but for dimension `dim`."""
    names = ", ".join(map(str, members[:8]))
    if len({member.dtype for member in members}) > 1:
        raise LayoutError(f"{names} differ in their dtype")
    tables = [member.table for member in members]
    if dim < 0 or any(dim >= table.local_shapes.shape[1] for table in tables):
        raise LayoutError(f"{names} have no dimension {dim} to stack on")
    first, rest = tables[0], np.delete(tables[0].local_shapes, dim, axis=1)
    for table in tables[1:]:
        if not np.array_equal(table.ranks, first.ranks):
            bad = np.setxor1d(table.ranks, first.ranks)
            raise LayoutError(f"{names} are not stacked: {ranks_text(bad)} hold some of them only")
        other = np.delete(table.local_shapes, dim, axis=1)
        if other.shape != rest.shape or (other != rest).any():
            alike = other.shape == rest.shape
            differ = table.ranks[(other != rest).any(axis=1)] if alike else table.ranks
            raise LayoutError(
                f"{names} are not stacked along dimension {dim}: their local shapes differ in the "
                f"other dimensions on {ranks_text(differ)}"
            )
    together = np.sum([table.local_shapes[:, dim] for table in tables], axis=0, dtype=float)
    if (together * rest.prod(axis=1, dtype=float) > MAX_NUMEL).any():
        raise LayoutError(f"{names} stacked are over the limit of {MAX_NUMEL} elements")


class Union:
    """What several groups of ranks hold of one tensor, each as its own member says."""

    __slots__ = ("key", "members")

    def __init__(self, members: tuple[Layout, ...]) -> None:
        self.members = members
        self.key = digest("union", *(member.key for member in members))

    @property
    def bases(self) -> tuple[Layout, ...]:
        return self.members

    def table(self, shape: tuple[int, ...]) -> Table:
        del shape
        tables = [member.table for member in self.members]
        ranks = np.concatenate([table.ranks for table in tables])
        order = np.argsort(ranks, kind="stable")
        local = np.concatenate([table.local_shapes for table in tables])[order]
        parts = [table.pieces for table in tables]
        rank = np.concatenate([part.rank for part in parts])
        row = np.argsort(rank, kind="stable")
        columns = (
            np.concatenate([getattr(part, name) for part in parts])[row]
            for name in ("offset", "size", "start", "stride")
        )
        return Table(frozen(ranks[order]), frozen(local), Pieces(rank[row], *columns))

    def __repr__(self) -> str:
        return " and ".join(repr(member.form) for member in self.members[:4])
