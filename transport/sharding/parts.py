"""What one rank moves, pair by pair: its boxes, where they lie on the lines, and the copies. Pure.

May import boxes, copies, lines, pairs and errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from transport.sharding.boxes import ranges
from transport.sharding.copies import Copies, joined, lay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from transport.sharding.boxes import Ints
    from transport.sharding.lines import Lines
    from transport.sharding.pairs import Pair

GRAIN = 4096  # bytes: less is not divided among sources


class Rows(NamedTuple):
    """What a rank moves of each tensor of a pair, in the order of the lines."""

    pair: Pair
    overlap: Ints  # (rows,) which overlap of a cell and a box
    piece: Ints  # (rows,) which piece of the target
    number: Ints  # (rows,) class of sources, -1: there is one only
    where: Ints  # (rows,) where the bytes of the first tensor lie on the lines
    step: Ints  # (rows,) and how far on those of the next one do


class Part(NamedTuple):
    """n copies between the tensors of one pair. They are of m kinds, for tensors are alike."""

    pair: Pair
    tensor: Ints  # (n,) which tensor of the pair
    kind: Ints  # (n,)
    item: Ints  # (m,) which item of the source's cells: rank and piece
    piece: Ints  # (m,) which piece of the target
    copies: Copies  # m


def of_target(lines: Lines, rank: int) -> list[Rows]:
    """What a target rank receives."""
    found = []
    for pair in lines.pairs:
        low, high = np.searchsorted(pair.wanted.pieces.rank, (rank, rank + 1))
        if low < high:
            box = pair.wanted.box[low:high]
            first = np.searchsorted(pair.overlap.b, box)
            count = np.searchsorted(pair.overlap.b, box, "right") - first
            overlap, piece = ranges(first, count)
            found.append((pair, overlap, piece + low))
    return _placed(lines, found, rank)


def of_source(lines: Lines, rank: int) -> list[Rows]:
    """What a source rank holds of what any target wants."""
    found = []
    for pair in lines.pairs:
        own = np.zeros(len(pair.held.cells.low), bool)
        items = np.flatnonzero(pair.held.rank == rank)
        own[np.searchsorted(pair.held.first, items, "right") - 1] = True
        overlap = np.flatnonzero(own[pair.overlap.a])
        if len(overlap):
            box = pair.overlap.b[overlap]
            order = np.argsort(pair.wanted.box, kind="stable")
            count = np.bincount(pair.wanted.box, minlength=len(pair.wanted.boxes.low))
            at, row = ranges((count.cumsum() - count)[box], count[box])
            piece, overlap = order[at], overlap[row]
            sort = np.lexsort((overlap, piece))
            found.append((pair, overlap[sort], piece[sort]))
    return _placed(lines, found, None)


def _placed(
    lines: Lines, found: Sequence[tuple[Pair, Ints, Ints]], target: int | None
) -> list[Rows]:
    """Finds where the rows lie on the lines: by class, target, pair, tensor, piece and cell."""
    made = []
    for pair, overlap, piece in found:
        sets = lines.sets(pair)[pair.overlap.a[overlap]]
        number = np.full(len(overlap), -1)
        many = sets >= 0
        if many.any():
            zone = lines.zones.zone[pair.wanted.pieces.rank[piece[many]]]
            number[many] = lines.classes.classes(sets[many], zone)
        made.append(Rows(pair, overlap, piece, number, number, number))
    if not any((rows.number >= 0).any() for rows in made):
        return made
    base = lines.base if target is None else lines.before(target)
    where, step = _along(made, base)
    cuts = np.cumsum([len(rows.number) for rows in made])[:-1]
    return [
        rows._replace(where=a, step=b)
        for rows, a, b in zip(made, np.split(where, cuts), np.split(step, cuts))
    ]


def _along(made: Sequence[Rows], base: Ints) -> tuple[Ints, Ints]:
    number = np.concatenate([rows.number for rows in made])
    target = np.concatenate([rows.pair.wanted.pieces.rank[rows.piece] for rows in made])
    which = np.repeat(np.arange(len(made)), [len(rows.number) for rows in made])
    nbytes = np.concatenate(
        [rows.pair.overlap.elements[rows.overlap] * rows.pair.source.itemsize for rows in made]
    )
    tensors = np.array([len(rows.pair.tensors) for rows in made], np.int64)
    order = np.lexsort((which, target, number))
    number, target, which, nbytes = (a[order] for a in (number, target, which, nbytes))
    fresh = np.ones(len(order), bool)
    fresh[1:] = (
        (number[1:] != number[:-1]) | (target[1:] != target[:-1]) | (which[1:] != which[:-1])
    )
    first = np.flatnonzero(fresh)  # of each stretch: one class, target and pair
    stretch = fresh.cumsum() - 1
    step = np.add.reduceat(nbytes, first)
    inside = nbytes.cumsum() - nbytes
    inside -= inside[first][stretch]
    long = step * tensors[which[first]]
    start = long.cumsum() - long
    begin = np.ones(len(first), bool)
    begin[1:] = number[first][1:] != number[first][:-1]
    start -= start[begin][begin.cumsum() - 1]
    start += np.where(number[first] >= 0, base[number[first]], 0)
    where, steps = np.empty_like(nbytes), np.empty_like(nbytes)
    where[order] = start[stretch] + inside
    steps[order] = step[stretch]
    return where, steps


def part(lines: Lines, rows: Rows, source: int | None = None) -> list[Part]:
    """The copies of a pair; of those that `source` sends where it is given."""
    alone = np.flatnonzero(rows.number < 0)
    chosen = np.flatnonzero(rows.number >= 0)
    made = [_alone(rows, alone)] if len(alone) else []
    if len(chosen):
        made += _chosen(lines, rows, chosen, source)
    return made


def _alone(rows: Rows, at: Ints) -> Part:
    """What one source holds alone: the same for all tensors of the pair."""
    pair, count = rows.pair, len(rows.pair.tensors)
    item, piece = pair.held.first[pair.overlap.a[rows.overlap[at]]], rows.piece[at]
    copies, kept = _joined(pair, _lay(pair, rows.overlap[at], item, piece), item, piece)
    tensor = np.repeat(np.arange(count), len(kept))
    every = np.tile(np.arange(len(kept)), count)
    return Part(pair, tensor, every, item[kept], piece[kept], copies)


def _lay(pair: Pair, overlap: Ints, item: Ints, piece: Ints) -> Copies:
    low, high = pair.overlap.low[overlap], pair.overlap.high[overlap]
    held = pair.held
    return lay(low, high, held.pieces, held.piece[item], pair.wanted.pieces, piece)


def _joined(
    pair: Pair, copies: Copies, item: Ints, piece: Ints, *keys: Ints
) -> tuple[Copies, Ints]:
    return joined(copies, *keys, pair.held.rank[item], pair.wanted.pieces.rank[piece])


def _chosen(lines: Lines, rows: Rows, at: Ints, source: int | None) -> list[Part]:
    """What the lines say who sends: by tensor and row."""
    count = len(rows.pair.tensors)
    where = (rows.where[at] + np.arange(count)[:, None] * rows.step[at]).ravel()
    tensor, row = np.repeat(np.arange(count), len(at)), np.tile(at, count)
    nbytes = rows.pair.overlap.elements[rows.overlap[row]] * rows.pair.source.itemsize
    begin = np.searchsorted(lines.cut, where, "right") - 1
    end = np.searchsorted(lines.cut, where + nbytes - 1, "right") - 1
    if not rows.pair.source.shape:  # a cut may go through an element, but nothing is less than one
        end = begin
    whole = np.flatnonzero((begin == end) & _wanted(lines, begin, source))
    made = [_undivided(lines, rows, tensor[whole], row[whole], begin[whole])]
    cut = np.flatnonzero(begin < end)
    if len(cut):
        made.append(
            _divided(lines, rows, _Cut(tensor, row, where, nbytes, begin, end, cut), source)
        )
    return made


def _wanted(lines: Lines, stretch: Ints, source: int | None) -> NDArray[np.bool_]:
    """The stretches of lines that this rank has to do with."""
    if source is None:
        return np.ones(len(stretch), bool)
    mine: NDArray[np.bool_] = lines.owner[stretch] == source
    return mine


def _items(pair: Pair, overlap: Ints, rank: Ints) -> Ints:
    """Where each rank is among the holders of the cell of each overlap."""
    held = pair.held
    span = int(held.rank.max()) + 1
    keys = np.repeat(np.arange(len(held.first) - 1), held.holders) * span + held.rank
    return np.searchsorted(keys, pair.overlap.a[overlap] * span + rank)


def _undivided(lines: Lines, rows: Rows, tensor: Ints, row: Ints, stretch: Ints) -> Part:
    pair = rows.pair
    item = _items(pair, rows.overlap[row], lines.owner[stretch])
    # Tensors repeat: a copy of each row from each of its sources is laid out once.
    kinds, kind = np.unique(row * (len(pair.held.rank) + 1) + item, return_inverse=True)
    kind = kind.ravel()
    some_row, some_item = np.divmod(kinds, len(pair.held.rank) + 1)
    some_piece = rows.piece[some_row]
    copies = _lay(pair, rows.overlap[some_row], some_item, some_piece)
    alike, _ = _joined(pair, copies, some_item, some_piece)
    if len(alike.size) == len(kinds):
        return Part(pair, tensor, kind, some_item, some_piece, copies)
    piece = rows.piece[row]  # there are neighbours, but not the same ones in every tensor
    copies, kept = _joined(pair, copies.take(kind), item, piece, tensor)
    return Part(pair, tensor[kept], np.arange(len(kept)), item[kept], piece[kept], copies)


class _Cut(NamedTuple):
    """Boxes that several stretches of a line have parts of: those numbered `at`."""

    tensor: Ints
    row: Ints
    where: Ints
    nbytes: Ints
    begin: Ints  # first stretch
    end: Ints  # last
    at: Ints


def _divided(lines: Lines, rows: Rows, cut: _Cut, source: int | None) -> Part:
    """Divides boxes along one dimension, as near to the cuts of the line as its steps allow."""
    stretch, box = ranges(cut.begin[cut.at], (cut.end - cut.begin + 1)[cut.at])
    box = cut.at[box]
    row, pair = cut.row[box], rows.pair
    low, high = _edges(lines, rows, cut, stretch, box)
    used = (low < high).all(axis=1) & _wanted(lines, stretch, source)
    row, piece = row[used], rows.piece[row[used]]
    item = _items(pair, rows.overlap[row], lines.owner[stretch[used]])
    held = pair.held
    copies = lay(low[used], high[used], held.pieces, held.piece[item], pair.wanted.pieces, piece)
    return Part(pair, cut.tensor[box[used]], np.arange(len(item)), item, piece, copies)


def _edges(lines: Lines, rows: Rows, cut: _Cut, stretch: Ints, box: Ints) -> tuple[Ints, Ints]:
    """Low and high of the part of each box that its stretch of the line has; perhaps none."""
    overlap = rows.overlap[cut.row[box]]
    low, high = rows.pair.overlap.low[overlap].copy(), rows.pair.overlap.high[overlap].copy()
    nbytes = cut.nbytes[box]
    begin, end = cut.begin[box], cut.end[box]
    dim, step = _steps(high - low, nbytes, end - begin + 1)
    at = np.arange(len(box))
    extent = (high - low)[at, dim]
    unit = nbytes // extent * step
    cuts = np.append(lines.cut, 0)  # what follows the last one is not looked at
    edges = []
    for side in (0, 1):
        near = (cuts[stretch + side] - cut.where[box] + unit // 2) // unit * step
        outer = stretch == (end if side else begin)
        edges.append(np.where(outer, side * extent, np.clip(near, 0, extent)))
    high[at, dim] = low[at, dim] + edges[1]
    low[at, dim] += edges[0]
    return low, high


def _steps(size: Ints, nbytes: Ints, parts: Ints) -> tuple[Ints, Ints]:
    """The dimension along which a box is divided, and by how many indices at a time.

    The outermost one that is fine enough, for its parts are the most contiguous; failing that, the
    longest.
    """
    width = nbytes[:, None] // size
    fine = width <= np.maximum(GRAIN, nbytes // (64 * parts))[:, None]
    dim = np.where(fine.any(axis=1), fine.argmax(axis=1), size.argmax(axis=1))
    at = np.arange(len(dim)), dim
    return dim, np.minimum(-(-GRAIN // width[at]), size[at])
