"""A plan as one rank sees it: what is near is its own, what is far is everybody else's.

Pure; may import plan for its type only. All numbers count elements of local tensors in row-major
order, as a Plan's do.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transport.sharding.plan import Plan

    Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """n copies of boxes."""

    rank: Numbers
    """(n,): whose the far side is"""
    near: Numbers
    """(n,): which of the near names"""
    far: Numbers
    """(n,): which of the far names"""
    size: Numbers
    """(n, d)"""
    near_start: Numbers
    """(n,)"""
    far_start: Numbers
    """(n,)"""
    near_stride: Numbers
    """(n, d)"""
    far_stride: Numbers
    """(n, d)"""

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def elements(self) -> Numbers:
        """(n,): how many each copy has."""
        return np.asarray(self.size.prod(axis=1, dtype=np.int64))

    def take(self, which: NDArray[np.int64] | slice) -> Cut:
        """Some of them."""
        return Cut(*[array[which] for array in self.arrays()])

    def arrays(self) -> list[Numbers]:
        """In the order of the fields."""
        return [getattr(self, field.name) for field in fields(self)]


def cut_of(plan: Plan) -> Cut:
    """All copies of a plan."""
    source = plan.source_rank, plan.source_tensor, plan.source_start, plan.source_stride
    target = plan.target_rank, plan.target_tensor, plan.target_start, plan.target_stride
    pull = plan.direction == "pull"
    near, far = (target, source) if pull else (source, target)
    return Cut(
        rank=far[0].astype(np.int64),
        near=near[1].astype(np.int64),
        far=far[1].astype(np.int64),
        size=plan.size,
        near_start=near[2],
        far_start=far[2],
        near_stride=near[3],
        far_stride=far[3],
    )


def joined(cuts: list[Cut]) -> Cut:
    """All copies of several; those of fewer dimensions get leading ones of size 1."""
    d = max(cut.size.shape[1] for cut in cuts)
    wide = [_widened(cut, d) for cut in cuts]
    return Cut(*[np.concatenate(arrays) for arrays in zip(*[cut.arrays() for cut in wide])])


def _widened(cut: Cut, d: int) -> Cut:
    lead = np.zeros((len(cut), d - cut.size.shape[1]), np.int64)
    return replace(
        cut,
        size=np.hstack([lead + 1, cut.size]),
        near_stride=np.hstack([lead, cut.near_stride]),
        far_stride=np.hstack([lead, cut.far_stride]),
    )


def divided(cut: Cut, limit: int) -> Cut:
    """The same elements in copies of at most `limit` elements each, cut along the outermost
    dimension that has several, and the next ones where that does not suffice.
    """
    while True:
        elements = cut.elements
        if not (elements > limit).any():
            return cut
        cut = _divided_once(cut, limit, elements)


def _divided_once(cut: Cut, limit: int, elements: Numbers) -> Cut:
    rows = np.arange(len(cut))
    dim = np.argmax(cut.size > 1, axis=1)
    many = cut.size[rows, dim]
    # As many of that dimension as fit, at least one; all of it where it is small enough already.
    each = np.where(elements > limit, np.maximum(limit * many // elements, 1), many)
    parts = -(-many // each)
    of = np.repeat(rows, parts)
    first = np.arange(len(of)) - np.repeat(np.cumsum(parts) - parts, parts)
    first *= each[of]
    size, at = cut.size[of], (np.arange(len(of)), dim[of])
    size[at] = np.minimum(each[of], many[of] - first)
    whole = cut.take(of)
    return replace(
        whole,
        size=size,
        near_start=whole.near_start + first * whole.near_stride[at],
        far_start=whole.far_start + first * whole.far_stride[at],
    )
