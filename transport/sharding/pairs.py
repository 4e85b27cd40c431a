"""Two state layouts side by side: their tensors grouped by pairs of layouts. Pure.

May import sides, boxes, state and errors. What a pair of layouts needs is worked out once, for all
of its tensors. Whatever cannot be planned is refused here, before anything else is done.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from transport.errors import LayoutError
from transport.sharding.boxes import Overlap, sums
from transport.sharding.checks import ranks_text
from transport.sharding.sides import Held, Sides, Wanted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transport.sharding.boxes import Ints
    from transport.sharding.layout import Layout
    from transport.sharding.state import Entry, StateLayout


@dataclass(frozen=True, eq=False, slots=True)
class Pair:
    """A source layout and a target layout, and the tensors that have these two."""

    source: Layout
    target: Layout
    held: Held
    wanted: Wanted
    overlap: Overlap  # of the held cells and the wanted boxes
    tensors: list[str]  # their names
    at_source: list[str]  # the local tensors that hold them
    at_target: list[str]
    short: Ints  # elements of each wanted box that no source has, `without` some

    @property
    def weight(self) -> int:
        """Bytes that are sent per element of the overlap of one tensor, times the tensors."""
        return self.source.itemsize * len(self.tensors)


def pairs(source: StateLayout, target: StateLayout, without: frozenset[int]) -> list[Pair]:
    """In order of first use. `without`: source ranks that have nothing.

    Raises LayoutError for tensors that the source lacks, whose shapes differ, or of which a target
    rank needs what no source rank has. What only those without had is for `check_cover`.
    """
    names, haves, wants = _matched(source, target)
    sides = Sides()
    held: dict[int, Held] = {}
    wanted: dict[int, Wanted] = {}
    made: list[Pair] = []
    # A state keeps equal layouts once, so that they are known by identity within it.
    keys = [np.array([id(entry.layout) for entry in side], np.uint64) for side in (haves, wants)]
    for group in _alike(*keys):
        have, want, tensors = (
            haves[group[0]].layout,
            wants[group[0]].layout,
            [names[i] for i in group],
        )
        _check_shapes(tensors[0], have, want)
        if id(have) not in held:
            held[id(have)] = sides.held(have, without)
        if id(want) not in wanted:
            wanted[id(want)] = sides.wanted(want)
        a, b = held[id(have)], wanted[id(want)]
        source_names, target_names = ([side[i].tensor for i in group] for side in (haves, wants))
        named = [names[i] for i in group]
        overlap = sides.overlap(a, b)
        # Cells share no element, so a box is covered if and only if the numbers are equal.
        short = b.boxes.volume - sums(overlap.b, overlap.elements, len(b.boxes.low))
        pair = Pair(have, want, a, b, overlap, named, source_names, target_names, short)
        if short.any() and not without:  # the layouts do not fit
            _refuse(pair, short, without)
        made.append(pair)
    return made


def check_cover(pair: Pair, rank: int | None, without: frozenset[int]) -> None:
    """Raises LayoutError where a target rank (None: any) needs what only lost sources had."""
    if not pair.short.any():
        return
    pieces = pair.wanted.pieces
    needed = np.zeros(len(pair.short), bool)
    needed[pair.wanted.box if rank is None else pair.wanted.box[pieces.rank == rank]] = True
    if (short := np.where(needed, pair.short, 0)).any():
        _refuse(pair, short, without)


def _matched(
    source: StateLayout, target: StateLayout
) -> tuple[list[str], list[Entry], list[Entry]]:
    """The target's tensors: names, entries at the source, entries at the target."""
    held, wanted = dict(source.items()), dict(target.items())
    missing = [name for name in wanted if name not in held]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        ranks = ranks_text(target[missing[0]].layout.ranks)
        raise LayoutError(f"no source has {missing[0]!r}{more}, needed by target {ranks}")
    return list(wanted), [held[name] for name in wanted], list(wanted.values())


def _check_shapes(name: str, have: Layout, want: Layout) -> None:
    if have.shape != want.shape:
        raise LayoutError(
            f"{name!r} is {list(have.shape)} at the source (ranks {_span(have)}) and "
            f"{list(want.shape)} at the target (ranks {_span(want)})"
        )


def _alike(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> list[list[int]]:
    """The places at which both arrays have the same; by first use."""
    columns = [np.unique(key, return_inverse=True)[1].ravel() for key in (left, right)]
    both = columns[0] * (len(left) + 1) + columns[1]
    _, first, place = np.unique(both, return_index=True, return_inverse=True)
    order = np.argsort(first[place.ravel()], kind="stable")
    cuts = np.flatnonzero(np.diff(first[place.ravel()][order], prepend=-1)).tolist()
    places: list[int] = order.tolist()
    return [places[a:b] for a, b in itertools.pairwise([*cuts, len(places)])]


def _refuse(pair: Pair, short: Ints, without: frozenset[int]) -> NoReturn:
    box = int(np.flatnonzero(short)[0])
    wanted = pair.wanted
    ranks = ranks_text(np.unique(wanted.pieces.rank[wanted.box == box]))
    low, high = wanted.boxes.low[box].tolist(), wanted.boxes.high[box].tolist()
    text = ", ".join(f"{a}:{b}" for a, b in zip(low, high))
    left = ""
    if without:
        left = f" once source {ranks_text(np.array(sorted(without)))} may not be used"
    raise LayoutError(
        f"no source rank has {int(short[box])} of the {int(wanted.boxes.volume[box])} elements of "
        f"{pair.tensors[0]!r}[{text}] needed by target {ranks}{left}"
    )


def _span(layout: Layout) -> str:
    ranks = layout.ranks
    return f"{int(ranks[0])} to {int(ranks[-1])}" if len(ranks) else "none"
