"""Whether tensors that lie in one local tensor leave each other alone. Pure.

May import checks and errors. Parts of a fused tensor do; two descriptions that were written by hand
may not, and then what arrives last would win.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from transport.errors import LayoutError
from transport.sharding.checks import overlapping
from transport.sharding.forms import row_major

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from transport.sharding.layout import Layout

    Ints = NDArray[np.int64]
    Box = tuple[list[int], list[int]]


def check_sharing(rank: int, tensor: str, names: Sequence[str], layouts: Sequence[Layout]) -> None:
    """Raises LayoutError where two of the layouts use the same element of a rank's local tensor.

    Looked at are pieces that are boxes of the local tensor, which those of fused and stacked
    tensors, explicit boxes and flat parameters are. Tensors of the very same layout are tied
    weights: they are one.
    """
    boxes: list[Box] = []
    owners: list[int] = []
    for layout, number in {layout: number for number, layout in enumerate(layouts)}.items():
        for box in _boxes(layout, rank):
            boxes.append(box)
            owners.append(number)
    if not boxes:
        return
    at, size = (np.array([box[side] for box in boxes], np.int64) for side in (0, 1))
    pair = overlapping(np.zeros(len(boxes), np.int64), at, size)
    if pair is not None:
        one, other = (names[owners[index]] for index in pair)
        raise LayoutError(f"{one} and {other} overlap in {tensor} of rank {rank}")


def _boxes(layout: Layout, rank: int) -> list[Box]:
    """The pieces of a rank as boxes of its local tensor, those that are."""
    pieces, local = layout.pieces_of(rank), layout.local_shape(rank)
    strides = row_major(np.array(local, np.int64)).tolist()
    found = (
        _box(start, size, stride, local, strides)
        for start, size, stride in zip(
            pieces.start.tolist(), pieces.size.tolist(), pieces.stride.tolist()
        )
    )
    return [box for box in found if box is not None]


def _box(
    start: int, size: list[int], stride: list[int], local: Sequence[int], strides: list[int]
) -> Box | None:
    """Where a piece begins in a local tensor and how far it reaches; None where it is no box."""
    made = _along([(n, s) for n, s in zip(size, stride) if n > 1], start, local, strides)
    return made or _along(_runs(size, stride), start, local, strides)


def _along(
    runs: list[tuple[int, int]], start: int, local: Sequence[int], strides: list[int]
) -> Box | None:
    extents = [1] * len(local)
    for count, step in runs:
        fits = [j for j, (n, s) in enumerate(zip(local, strides)) if s == step and n > 1]
        if not fits or extents[fits[0]] > 1:
            return None
        extents[fits[0]] = count
    at: list[int] = []
    for step in strides:
        index, start = divmod(start, step)
        at.append(index)
    if any(a + n > m for a, n, m in zip(at, extents, local)):
        return None
    return at, extents


def _runs(size: list[int], stride: list[int]) -> list[tuple[int, int]]:
    """Counts and steps of the dimensions, those that follow each other in memory as one."""
    steps = sorted((s, n) for n, s in zip(size, stride) if n > 1)
    runs: list[tuple[int, int]] = []
    for step, count in steps:
        if runs and runs[-1][0] * runs[-1][1] == step:
            runs[-1] = runs[-1][0] * count, runs[-1][1]
        else:
            runs.append((count, step))
    return runs
