"""What planning needs to know of a layout, as source and as target. Pure.

May import boxes, layout and errors. A source is cut into *cells*: boxes that share no element, each
with the ranks that hold all of it. Replicas make cells of several holders; boxes that overlap in
part are cut up. A target keeps its pieces, and knows which of them are alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from transport.errors import LayoutError
from transport.sharding.boxes import Overlap, distinct, overlap, ranges, sums, volume

if TYPE_CHECKING:
    from transport.sharding.boxes import Ints
    from transport.sharding.layout import Layout
    from transport.sharding.pieces import Pieces

_MAX_CELLS = 1 << 20  # of boxes that overlap in part: beyond that a layout is refused, not planned


@dataclass(frozen=True, eq=False, slots=True)
class Geometry:
    """Different boxes, without who holds them. Layouts of other ranks share it."""

    low: Ints  # (n, d)
    high: Ints
    volume: Ints  # (n,)

    @classmethod
    def of(cls, low: Ints, high: Ints) -> Geometry:
        return cls(low, high, volume(low, high))


@dataclass(frozen=True, eq=False, slots=True)
class Held:
    """A source layout: cell c is held by the items first[c] to first[c + 1] of rank and piece."""

    cells: Geometry
    first: Ints  # (cells + 1,)
    rank: Ints  # (items,) ascending within a cell, each once
    piece: Ints  # (items,) the piece of that rank which contains the cell
    pieces: Pieces

    @property
    def holders(self) -> Ints:
        """How many ranks hold each cell, (cells,)."""
        return np.diff(self.first)


@dataclass(frozen=True, eq=False, slots=True)
class Wanted:
    """A target layout."""

    boxes: Geometry
    box: Ints  # (pieces,) which of the boxes each piece is
    pieces: Pieces


class Sides:
    """Works out sides and overlaps; what layouts have in common is done once."""

    def __init__(self) -> None:
        self._geometries: dict[tuple[tuple[int, ...], bytes], Geometry] = {}
        self._cells: dict[int, tuple[Geometry, Ints, Ints] | None] = {}
        self._overlaps: dict[tuple[int, int], Overlap] = {}

    def held(self, layout: Layout, without: frozenset[int] = frozenset()) -> Held:
        """A layout as source, without some of its ranks. Raises LayoutError for too many cells."""
        pieces = layout.pieces()
        alive = np.arange(len(pieces))
        if without:
            alive = alive[~np.isin(pieces.rank, list(without))]
        shapes, place = self._distinct(pieces.offset[alive], pieces.size[alive])
        parts = self._parts(shapes)
        if parts is not None:  # each box is several cells
            shapes, first, cell = parts
            at, row = ranges(first[place], np.diff(first)[place])
            place, alive = cell[at], alive[row]
        rank = pieces.rank[alive]
        order = np.lexsort((alive, rank, place))
        place, rank, alive = place[order], rank[order], alive[order]
        once = np.ones(len(place), bool)
        once[1:] = (place[1:] != place[:-1]) | (rank[1:] != rank[:-1])
        first = np.zeros(len(shapes.low) + 1, np.int64)
        np.cumsum(np.bincount(place[once], minlength=len(shapes.low)), out=first[1:])
        return Held(shapes, first, rank[once], alive[once], pieces)

    def wanted(self, layout: Layout) -> Wanted:
        """A layout as target."""
        pieces = layout.pieces()
        shapes, place = self._distinct(pieces.offset, pieces.size)
        return Wanted(shapes, place, pieces)

    def overlap(self, held: Held, wanted: Wanted) -> Overlap:
        """Of the cells and the boxes."""
        key = id(held.cells), id(wanted.boxes)  # both live as long as this does
        found = self._overlaps.get(key)
        if found is None:
            a, b = held.cells, wanted.boxes
            found = self._overlaps[key] = overlap(a.low, a.high, b.low, b.high)
        return found

    def _distinct(self, low: Ints, size: Ints) -> tuple[Geometry, Ints]:
        high = low + size
        rows, place = distinct(low, high)
        return self._shared(low[rows], high[rows]), place

    def _shared(self, low: Ints, high: Ints) -> Geometry:
        key = low.shape, low.tobytes() + high.tobytes()
        found = self._geometries.get(key)
        if found is None:
            found = self._geometries[key] = Geometry.of(low, high)
        return found

    def _parts(self, boxes: Geometry) -> tuple[Geometry, Ints, Ints] | None:
        """None where no two boxes overlap, else the cells and, box by box, those that it has."""
        if id(boxes) not in self._cells:
            both = overlap(boxes.low, boxes.high, boxes.low, boxes.high)
            made = None
            if len(both.a) > len(boxes.low):
                low, high, first, cell = _cut_up(boxes, both)
                made = self._shared(low, high), first, cell
            self._cells[id(boxes)] = made
        return self._cells[id(boxes)]


def _cut_up(boxes: Geometry, both: Overlap) -> tuple[Ints, Ints, Ints, Ints]:
    """Low and high of the cells, and which of them each box consists of (first, cell)."""
    group = _groups(both, len(boxes.low))
    lows: list[Ints] = []
    highs: list[Ints] = []
    box: list[Ints] = []
    cell: list[Ints] = []
    count = 0
    for number in np.unique(group):
        members = np.flatnonzero(group == number)
        low, high, of, within = _grid(boxes.low[members], boxes.high[members])
        lows.append(low)
        highs.append(high)
        box.append(members[of])
        cell.append(within + count)
        count += len(low)
    boxed, cells = np.concatenate(box), np.concatenate(cell)
    first = np.zeros(len(boxes.low) + 1, np.int64)
    np.cumsum(sums(boxed, np.ones_like(boxed), len(boxes.low)), out=first[1:])
    return np.concatenate(lows), np.concatenate(highs), first, cells[np.lexsort((cells, boxed))]


def _groups(both: Overlap, count: int) -> Ints:
    """Per box a number that boxes which are connected by overlaps have in common."""
    group = np.arange(count)
    while True:
        smaller = group.copy()
        np.minimum.at(smaller, both.a, group[both.b])
        smaller = smaller[smaller]
        if np.array_equal(smaller, group):
            return group
        group = smaller


def _grid(low: Ints, high: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """The cells of a few boxes: all their edges drawn through, cells in no box left out.

    Returns low and high of the cells, and pairs of box and cell.
    """
    edges = [np.unique(np.concatenate((a, b))) for a, b in zip(low.T, high.T)]
    shape = tuple(len(edge) - 1 for edge in edges)
    if np.prod(shape, dtype=float) > _MAX_CELLS:
        raise LayoutError(
            f"{len(low)} boxes of a source overlap in part in over {_MAX_CELLS} ways; describe "
            "replicas by equal boxes"
        )
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    begin = [np.searchsorted(edge, a) for edge, a in zip(edges, low.T)]
    end = [np.searchsorted(edge, b) for edge, b in zip(edges, high.T)]
    parts = [
        numbers[tuple(slice(b[i], e[i]) for b, e in zip(begin, end))].ravel()
        for i in range(len(low))
    ]
    used, cell = np.unique(np.concatenate(parts), return_inverse=True)
    at = np.unravel_index(used, shape)
    lows = np.stack([edge[i] for edge, i in zip(edges, at)], axis=1)
    highs = np.stack([edge[i + 1] for edge, i in zip(edges, at)], axis=1)
    box = np.repeat(np.arange(len(low)), [len(part) for part in parts])
    return lows, highs, box, cell.ravel().astype(np.int64)
