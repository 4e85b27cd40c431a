"""From `Copies` to the plain structs that C takes, with numpy: no Python for any one copy.

May import memory, errors, copies and numpy; batch.py imports it late, when there are Copies. All is
checked here, because C knows no bounds of local memory that is not registered; C checks it again as
far as it can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from transport.errors import InvalidUse, OutOfRange
from transport.memory.layout import MAX_OUTER, span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transport.engine.copies import Copies, Numbers
    from transport.memory.host import View

RANGES = np.dtype(
    [
        ("local_address", "<u8"),
        ("local_region", "<u8"),
        ("remote_offset", "<u8"),
        ("length", "<u8"),
        ("rows", "<u8"),
        ("local_stride", "<i8"),
        ("remote_stride", "<i8"),
        ("remote", "<u4"),
        ("outer", "<u4"),
    ]
)
"""struct tn_range"""

_DIM = np.dtype([("count", "<u8"), ("local_stride", "<i8"), ("remote_stride", "<i8")])
OUTERS = np.dtype([("dims", "<u8"), ("dim", _DIM, (MAX_OUTER,))])
"""struct tn_outer"""

# No sum of products that the checks compute reaches 2^63 below this; no memory is as large.
_FAR = float(1 << 61)


class Boxes(NamedTuple):
    """Copies with as few dimensions as both sides allow, the innermost first."""

    length: Numbers
    """(n,)"""
    rank: Numbers
    """(n,): how many dimensions each of them has"""
    sizes: Numbers
    """(n, d): 1 beyond the rank"""
    left: Numbers
    """(n, d): bytes per step, 0 beyond the rank"""
    right: Numbers
    """(n, d)"""


class Packed:
    """What `Copies` are to C, once the memories are known. Raises InvalidUse, OutOfRange."""

    def __init__(self, copies: Copies, views: Sequence[View]) -> None:
        _check_form(copies)
        filled = np.flatnonzero((copies.length != 0) & (copies.sizes != 0).all(axis=1))
        here, there = copies.local_index[filled], copies.remote_index[filled]
        _check_bounds(copies, filled, views)
        self._boxes = joined(
            copies.length[filled],
            copies.sizes[filled],
            copies.local_strides[filled],
            copies.remote_strides[filled],
        )
        if self._boxes.rank.max(initial=0) > MAX_OUTER + 1:
            raise InvalidUse(f"a copy has more than {MAX_OUTER + 2} dimensions that do not join")
        addresses = np.array([view.address for view in views] or [0], np.int64)
        offsets = np.array([remote.offset for remote in copies.remote] or [0], np.int64)
        self._local, self._remote = here, there
        self._address = addresses[here] + copies.local_start[filled]
        self._offset = offsets[there] + copies.remote_start[filled]
        self._peers = _numbered([remote.incarnation for remote in copies.remote])
        self.at = np.zeros(len(copies.remote), np.int64)
        """Where the batch has each remote region; to be filled in."""
        self.regions = np.zeros(len(views), np.uint64)
        """What C is told of each local memory; to be filled in."""

    def by_peer(self) -> Iterator[Numbers]:
        """The positions of all copies with one peer, for each peer."""
        if not len(self._remote):
            return
        peers = self._peers[self._remote]
        order = np.argsort(peers, kind="stable")
        yield from np.split(order, np.flatnonzero(np.diff(peers[order])) + 1)

    def remotes_of(self, which: Numbers) -> list[int]:
        """Which remote regions these copies are of."""
        return list(np.unique(self._remote[which]).tolist())

    def locals_of(self, which: Numbers) -> list[int]:
        """Which local memories these copies are of."""
        return list(np.unique(self._local[which]).tolist())

    def structs(self, which: Numbers, first: int) -> tuple[memoryview, memoryview]:
        """Packed ranges and outer dimensions of these copies; the batch has `first` of the latter
        already.
        """
        boxes = self._boxes
        ranges = np.zeros(len(which), RANGES)
        ranges["local_address"] = self._address[which]
        ranges["local_region"] = self.regions[self._local[which]]
        ranges["remote_offset"] = self._offset[which]
        ranges["length"] = boxes.length[which]
        ranges["remote"] = self.at[self._remote[which]]
        ranges["rows"] = 1
        if boxes.sizes.shape[1]:
            ranges["rows"] = boxes.sizes[which, 0]
            ranges["local_stride"] = boxes.left[which, 0]
            ranges["remote_stride"] = boxes.right[which, 0]
        deep = np.flatnonzero(boxes.rank[which] > 1)
        ranges["outer"][deep] = first + 1 + np.arange(len(deep))
        return _bytes(ranges), _bytes(self._outers(which[deep]))

    def _outers(self, which: Numbers) -> Any:
        boxes = self._boxes
        outers = np.zeros(len(which), OUTERS)
        outers["dims"] = boxes.rank[which] - 1
        for place in range(min(MAX_OUTER, boxes.sizes.shape[1] - 1)):
            # The outermost first: from the last dimension down to the one round the rows.
            dim = boxes.rank[which] - 1 - place
            has = np.flatnonzero(dim >= 1)
            source = which[has], dim[has]
            outers["dim"]["count"][has, place] = boxes.sizes[source]
            outers["dim"]["local_stride"][has, place] = boxes.left[source]
            outers["dim"]["remote_stride"][has, place] = boxes.right[source]
        return outers


def _bytes(structs: Any) -> memoryview:
    return memoryview(structs.view(np.uint8)).cast("B") if len(structs) else memoryview(b"")


def joined(length: Numbers, sizes: Numbers, left: Numbers, right: Numbers) -> Boxes:
    """Drops dimensions of size 1 and joins neighbours that both sides allow to be one; a dimension
    that continues the run on both sides makes it longer.
    """
    n, d = sizes.shape
    length, rank, rows = length.copy(), np.zeros(n, np.int64), np.arange(n)
    out = Boxes(length, rank, np.ones_like(sizes), np.zeros_like(left), np.zeros_like(right))
    for k in reversed(range(d)):
        size, a, b = sizes[:, k], left[:, k], right[:, k]
        last = np.maximum(rank - 1, 0)
        alone, many = rank == 0, out.sizes[rows, last]
        next_a = np.where(alone, length, out.left[rows, last] * many)
        next_b = np.where(alone, length, out.right[rows, last] * many)
        joins = (a == next_a) & (b == next_b)
        longer = np.flatnonzero(joins & alone)
        length[longer] *= size[longer]
        more = np.flatnonzero(joins & ~alone)
        out.sizes[more, last[more]] *= size[more]
        new = np.flatnonzero(~joins & (size != 1))
        out.sizes[new, rank[new]] = size[new]
        out.left[new, rank[new]] = a[new]
        out.right[new, rank[new]] = b[new]
        rank[new] += 1
    return out


def _check_form(copies: Copies) -> None:
    n = len(copies.length)
    flat = ("local_index", "remote_index", "local_start", "remote_start", "length")
    deep = ("sizes", "local_strides", "remote_strides")
    d = copies.sizes.shape[1] if copies.sizes.ndim == 2 else -1
    for name in (*flat, *deep):
        array = getattr(copies, name)
        wanted = (n, d) if name in deep else (n,)
        if array.dtype != np.int64 or array.shape != wanted:
            shown = f"{array.dtype}{list(array.shape)}"
            raise InvalidUse(f"`{name}` of the copies is {shown}, not int64{list(wanted)}")
    if not n:
        return
    if copies.length.min() < 0 or copies.sizes.min(initial=0) < 0:
        raise InvalidUse("a copy has a negative size")
    for name, many in (("local", len(copies.local)), ("remote", len(copies.remote))):
        index = getattr(copies, f"{name}_index")
        if index.min() < 0 or index.max() >= many:
            raise OutOfRange(f"`{name}_index` of a copy is outside the {many} that are given")


def _check_bounds(copies: Copies, filled: Numbers, views: Sequence[View]) -> None:
    """Every byte must be inside what its memory or its remote region has."""
    near = [span(view.shape, view.strides, view.itemsize) for view in views]
    far = [span(it.shape, it.strides, it.itemsize) for it in copies.remote]
    sides: tuple[tuple[str, Any, Numbers, Numbers, Numbers], ...] = (
        ("local", near, copies.local_index, copies.local_start, copies.local_strides),
        ("remote", far, copies.remote_index, copies.remote_start, copies.remote_strides),
    )
    for name, spans, index, start, strides in sides:
        low, high = _extents(copies, filled, start[filled], strides[filled])
        borders = np.array(spans, np.int64).reshape(-1, 2)[index[filled]]
        outside = np.flatnonzero((low < borders[:, 0]) | (high > borders[:, 1]))
        if len(outside):
            i = outside[0]
            raise OutOfRange(
                f"copy {filled[i]}: bytes {low[i]} to {high[i]} of the {name} side are outside"
                f" {borders[i, 0]} to {borders[i, 1]}"
            )


def _extents(
    copies: Copies, filled: Numbers, start: Numbers, strides: Numbers
) -> tuple[Numbers, Numbers]:
    """First and end byte of each copy on one side."""
    sizes, length = copies.sizes[filled], copies.length[filled]
    far = np.abs(start.astype(float)) + length.astype(float)
    far += np.abs((sizes.astype(float) - 1) * strides.astype(float)).sum(axis=1)
    if (far > _FAR).any():
        raise OutOfRange(f"copy {filled[np.argmax(far)]} is longer than any memory")
    reach = (sizes - 1) * strides
    low = start + np.minimum(reach, 0).sum(axis=1)
    return low, start + length + np.maximum(reach, 0).sum(axis=1)


def _numbered(names: Sequence[bytes]) -> Numbers:
    """The same number for the same name."""
    known: dict[bytes, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], np.int64)
