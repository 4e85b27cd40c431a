"""Layouts from a plain table: which rank has which slices. Pure; may import layout and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transport.errors import LayoutError
from transport.sharding.checks import shape_of
from transport.sharding.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def layout_of_slices(
    shape: Sequence[int], dtype: Any, table: Mapping[int, Sequence[slice]]
) -> Layout:
    """A layout from {rank: slices}, as {0: (slice(0, 4), slice(None)), 1: (slice(4, 8),)}.

    Dimensions that are left out are whole; a rank's local tensor is its slice. Raises LayoutError
    for steps, and for bounds outside the tensor: nothing is clamped.
    """
    shape = shape_of(shape)
    boxes = {rank: [_box(rank, slices, shape)] for rank, slices in table.items()}
    sizes = {rank: size for rank, [(_, size)] in boxes.items()}
    return Layout.explicit(shape, dtype, boxes, sizes)


def _box(rank: int, slices: Sequence[slice], shape: tuple[int, ...]) -> Any:
    if len(slices) > len(shape):
        raise LayoutError(f"{len(slices)} slices of rank {rank} for {len(shape)} dimensions")
    ends = [_ends(rank, part, extent) for part, extent in zip(slices, shape)]
    ends += [(0, extent) for extent in shape[len(slices) :]]
    return tuple(a for a, _ in ends), tuple(b - a for a, b in ends)


def _ends(rank: int, part: slice, extent: int) -> tuple[int, int]:
    start = 0 if part.start is None else part.start
    stop = extent if part.stop is None else part.stop
    if part.step not in (None, 1) or not 0 <= start <= stop <= extent:
        raise LayoutError(f"{part} of rank {rank} is no part of a dimension of {extent}")
    return start, stop
