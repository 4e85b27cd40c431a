"""A layout as a picture in text: which rank holds which part. Pure; may import layout and state.

Rows and columns are the places where the tensor is cut, not its elements. What does not fit is left
out with an ellipsis, so that a mesh of a thousand ranks is a picture too. The text has no markup.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from transport.types import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from transport.sharding.layout import Layout
    from transport.sharding.pieces import Pieces
    from transport.sharding.state import StateLayout

    Interval: TypeAlias = tuple[int, int] | None
    """First and one-past-last index; None stands for all that is left out."""

_CELL = 16  # characters


def picture_of(layout: Layout, *, rows: int = 12, columns: int = 6) -> str:
    """Which ranks hold which part of a tensor, in at most `rows` x `columns` cells.

    Rows are the cuts along the first dimension that is cut and all others but the last, columns
    those along the last one. A cell lists ranks: "0-3,8" or "0-60/4" (every fourth).
    """
    cuts = [_intervals(layout, dim) for dim in range(len(layout.shape))]
    cut = [dim for dim, found in enumerate(cuts) if len(found) > 1]
    last = cut[-1:] if len(cut) > 1 else []
    down = [dim for dim in cut if dim not in last]
    heads = _some(cuts[last[0]], columns) if last else [(0, 0)]
    lines = [[_heading(down, last), *(_span(head) for head in heads)]] if last else []
    for row in _rows([cuts[dim] for dim in down], rows):
        label = "..." if row is None else ", ".join(map(_span, row)) or "all"
        bounds = None if row is None else dict(zip(down, row))
        lines.append([label, *(_cell(layout, bounds, last, head) for head in heads)])
    return "\n".join([_title(layout), *_aligned(lines)])


def picture_of_state(state: StateLayout, *, layouts: int = 8, rows: int = 8) -> str:
    """The layouts of a state, those with the most bytes first, each with a tensor that has it."""
    names: dict[int, list[str]] = {}
    for name, entry in state.items():
        names.setdefault(id(entry.layout), []).append(name)
    found = [(layout, names[id(layout)]) for layout in state.layouts]
    found.sort(key=lambda one: -one[0].nbytes * len(one[1]))
    parts = [_summary(state)]
    for layout, of in found[:layouts]:
        more = f" and {len(of) - 1} more" if len(of) > 1 else ""
        parts.append(f"{of[0]}{more}: {picture_of(layout, rows=rows)}")
    if len(found) > layouts:
        parts.append(f"... and {len(found) - layouts} more layouts")
    return "\n\n".join(parts)


def ranks_in_short(ranks: Sequence[int] | NDArray[np.int64], width: int = _CELL) -> str:
    """ "0-3,8", "0-60/4" for every fourth, "-" for nobody; cut off with "..." at the width."""
    parts: list[str] = []
    left = [int(rank) for rank in ranks]
    while left:
        step = left[1] - left[0] if len(left) > 1 else 1
        count = 1
        while count < len(left) and left[count] == left[count - 1] + step:
            count += 1
        count = 1 if count == 2 and step > 1 else count
        end = "" if count == 1 else f"-{left[count - 1]}"
        parts.append(f"{left[0]}{end}{f'/{step}' if end and step > 1 else ''}")
        left = left[count:]
        if len(",".join(parts)) > width:
            return ",".join(parts)[: width - 3].rsplit(",", 1)[0] + ",..."
    return ",".join(parts) or "-"


def _intervals(layout: Layout, dim: int) -> list[Interval]:
    """The stretches of a dimension between the borders of any pieces."""
    pieces = layout.pieces()
    low, size = pieces.offset[:, dim], pieces.size[:, dim]
    borders = np.unique(np.concatenate([[0, layout.shape[dim]], low, low + size]))
    return list(itertools.pairwise(borders.tolist()))


def _some(found: list[Interval], count: int) -> list[Interval]:
    if len(found) <= count:
        return found
    return [*found[: count - 2], None, found[-1]]


def _rows(cuts: list[list[Interval]], count: int) -> list[tuple[Interval, ...] | None]:
    """Combinations of the intervals of several dimensions; None for those left out."""
    total = int(np.prod([len(found) for found in cuts], dtype=np.int64))
    if total <= count:
        return list(itertools.product(*cuts))
    first = itertools.islice(itertools.product(*cuts), count - 2)
    return [*first, None, tuple(found[-1] for found in cuts)]


def _cell(
    layout: Layout, bounds: dict[int, Interval] | None, last: list[int], head: Interval
) -> str:
    if bounds is None or head is None:
        return "..."
    box = {**bounds, **({last[0]: head} if last else {})}
    return ranks_in_short(_holders(layout.pieces(), box))


def _holders(pieces: Pieces, box: dict[int, Interval]) -> NDArray[np.int64]:
    """The ranks one of whose pieces has all of the box."""
    held = np.ones(len(pieces), bool)
    for dim, interval in box.items():
        if interval is not None:
            held &= pieces.offset[:, dim] <= interval[0]
            held &= pieces.offset[:, dim] + pieces.size[:, dim] >= interval[1]
    return np.unique(pieces.rank[held])


def _span(interval: Interval) -> str:
    return "..." if interval is None else f"{interval[0]}:{interval[1]}"


def _heading(down: list[int], last: list[int]) -> str:
    return f"dim {', '.join(map(str, down))} \\ dim {last[0]}"


def _title(layout: Layout) -> str:
    pieces = layout.pieces()
    held = np.zeros(len(layout.ranks), np.int64)
    rows = np.searchsorted(layout.ranks, pieces.rank)
    np.add.at(held, rows, pieces.size.prod(axis=1) * layout.itemsize)
    each = [
        format_bytes(int(n)) for n in (held.min(initial=held.max(initial=0)), held.max(initial=0))
    ]
    share = each[0] if each[0] == each[1] else f"{each[0]} to {each[1]}"
    empty = layout.ranks[held == 0]
    idle = f"; nothing on {ranks_in_short(empty)}" if len(empty) and layout.nbytes else ""
    many = f"{len(layout.ranks)} rank{'s' if len(layout.ranks) != 1 else ''}"
    return (
        f"{layout} {layout.form!r}\n{format_bytes(layout.nbytes)}, {share} on each of {many}{idle}"
    )


def _summary(state: StateLayout) -> str:
    total = format_bytes(state.nbytes)
    return (
        f"{len(state)} tensors, {total}, on {len(state.ranks)} ranks "
        f"in {len(state.layouts)} different layouts"
    )


def _aligned(lines: list[list[str]]) -> list[str]:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        "  " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip()
        for line in lines
    ]
