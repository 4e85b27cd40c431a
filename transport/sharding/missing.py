"""Which copies of a new plan bring what an old one has not brought. Pure; may import cut.

Boxes of different plans are compared by the local elements that they fill, marked one by one, a
tensor at a time: it is done only when a rank was lost, and needs as many bytes as the tensor has
elements.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from transport.sharding.cut import joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from transport.sharding.cut import Cut


def missing_of(new: Cut, missing: Sequence[Cut]) -> Cut:
    """The copies of `new`, cut to the least box that has all of `missing` that they bring."""
    lost = joined(list(missing))
    made = [new.take(slice(0, 0))]
    for tensor in np.unique(lost.near).tolist():
        old = lost.take(np.flatnonzero(lost.near == tensor))
        found = new.take(np.flatnonzero(new.near == tensor))
        marks = np.zeros(max(_end(old), _end(found)), bool)
        for i in range(len(old)):
            _box(marks, old, i)[...] = True
        made += [cut for i in range(len(found)) if (cut := _least(marks, found, i)) is not None]
    return joined(made)


def _end(cut: Cut) -> int:
    """One past the last near element of all."""
    last = cut.near_start + ((cut.size - 1) * cut.near_stride).sum(axis=1)
    return int(last.max(initial=-1)) + 1


def _box(marks: NDArray[np.bool_], cut: Cut, i: int) -> NDArray[np.bool_]:
    """The marks of a copy's elements."""
    at = marks[int(cut.near_start[i]) :]
    return np.lib.stride_tricks.as_strided(at, cut.size[i].tolist(), cut.near_stride[i].tolist())


def _least(marks: NDArray[np.bool_], cut: Cut, i: int) -> Cut | None:
    """The least box of a copy that has all of its marked elements; None: there are none."""
    box = _box(marks, cut, i)
    if not box.any():
        return None
    one = cut.take(slice(i, i + 1))
    first, size = np.zeros_like(one.size), one.size.copy()
    for k in range(box.ndim):
        others = tuple(axis for axis in range(box.ndim) if axis != k)
        marked = np.flatnonzero(box.any(axis=others))
        first[0, k], size[0, k] = marked[0], marked[-1] - marked[0] + 1
    return replace(
        one,
        size=size,
        near_start=one.near_start + (first * one.near_stride).sum(axis=1),
        far_start=one.far_start + (first * one.far_stride).sum(axis=1),
    )
