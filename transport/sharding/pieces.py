"""Boxes of one tensor and where each lies in its rank's local tensor. Pure; imports errors only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from transport.sharding.mesh import frozen

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


class Pieces:
    """n boxes of one tensor of d dimensions: a struct of read-only int64 arrays, in elements.

    `rank` (n,): who holds it; ascending. `offset` (n, d): global index of its first element. `size`
    (n, d): all > 0, since an empty shard has no piece. `start` (n,): the element of the rank's
    local tensor, counted in row-major order of the local shape, at which it begins. `stride`
    (n, d): elements of the local tensor per step of each *global* dimension.
    """

    __slots__ = ("offset", "rank", "size", "start", "stride")

    def __init__(
        self,
        rank: ArrayLike,
        offset: ArrayLike,
        size: ArrayLike,
        start: ArrayLike,
        stride: ArrayLike,
    ) -> None:
        self.rank: NDArray[np.int64] = frozen(rank)
        self.offset: NDArray[np.int64] = frozen(offset)
        self.size: NDArray[np.int64] = frozen(size)
        self.start: NDArray[np.int64] = frozen(start)
        self.stride: NDArray[np.int64] = frozen(stride)

    def __len__(self) -> int:
        return len(self.rank)

    def of(self, rank: int) -> Pieces:
        """Those that `rank` holds; views of the same memory."""
        low, high = np.searchsorted(self.rank, (rank, rank + 1))
        made = Pieces.__new__(Pieces)
        made.rank, made.start = self.rank[low:high], self.start[low:high]
        made.offset, made.size = self.offset[low:high], self.size[low:high]
        made.stride = self.stride[low:high]
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pieces):
            return NotImplemented
        return all(np.array_equal(getattr(self, n), getattr(other, n)) for n in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Pieces n={len(self)} ranks={len(np.unique(self.rank))}>"
