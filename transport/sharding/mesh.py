"""A grid of ranks with named dimensions. Pure; may import errors only."""

from __future__ import annotations

import math
import operator
import re
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from transport.errors import LayoutError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

MAX_RANKS = 1 << 20
"""In one mesh. Bounds what a description from outside can make this process allocate."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


class Mesh:
    """A grid of ranks, as torch's DeviceMesh: `Mesh((2, 4), ("dp", "tp"))`. Immutable, hashable.

    `ranks` numbers the grid's places within the group, 0, 1, 2 ... in row-major order when they are
    not given. Raises LayoutError for a grid that cannot be.
    """

    __slots__ = ("key", "names", "ranks", "shape", "size")

    names: tuple[str, ...]
    shape: tuple[int, ...]
    ranks: NDArray[np.int64]
    size: int
    key: bytes

    def __init__(
        self,
        shape: Sequence[int],
        names: Sequence[str] | None = None,
        ranks: ArrayLike | None = None,
    ) -> None:
        extents = listed(shape, "the shape of a mesh")
        self.shape = tuple(whole(extent, "the extent of a mesh dimension") for extent in extents)
        if any(extent < 1 for extent in self.shape):
            raise LayoutError(f"a mesh has at least one rank along each dimension: {self.shape}")
        self.size = math.prod(self.shape)
        if self.size > MAX_RANKS:
            raise LayoutError(f"a mesh of {self.size} ranks is over the limit of {MAX_RANKS}")
        self.names = _names(names, len(self.shape))
        self.ranks = _ranks(ranks, self.shape)
        digest = blake2b(repr((self.shape, self.names)).encode(), digest_size=16)
        digest.update(self.ranks.tobytes())
        self.key = digest.digest()

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """Reads "dp=2,tp=4", the slowest dimension first. Raises LayoutError for other text."""
        names: list[str] = []
        shape: list[int] = []
        for part in text.split(","):
            name, equals, extent = part.strip().partition("=")
            if not equals or not re.fullmatch(r"[0-9]{1,7}", extent.strip()):
                raise LayoutError(f"{text!r:.80} is not a mesh; write it as in dp=2,tp=4")
            names.append(name.strip())
            shape.append(int(extent))
        return cls(shape, names)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Where a rank is, one index per dimension. Raises LayoutError for a rank not in it."""
        found = np.argwhere(self.ranks == rank)
        if not len(found):
            raise LayoutError(f"rank {rank} is not in {self}")
        return tuple(int(index) for index in found[0])

    def dimension(self, name: str) -> int:
        """The index of a dimension by name. Raises LayoutError for an unknown name."""
        if name not in self.names:
            raise LayoutError(f"{self} has no dimension {name!r}")
        return self.names.index(name)

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, Mesh) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> tuple[Any, ...]:
        return Mesh, (self.shape, self.names, self.ranks)

    def __str__(self) -> str:
        return ",".join(f"{name}={extent}" for name, extent in zip(self.names, self.shape))

    def __repr__(self) -> str:
        plain = np.array_equal(self.ranks.ravel(), np.arange(self.size))
        where = "" if plain else f", ranks={self.ranks.tolist()!r:.80}"
        return f"Mesh({self.shape}, {self.names}{where})"


def whole(value: Any, what: str) -> int:
    """`value` as an int. Raises LayoutError where it is none."""
    try:
        return operator.index(value)
    except TypeError:
        raise LayoutError(f"{what} is an integer, not {value!r:.80}") from None


def listed(values: Any, what: str) -> tuple[Any, ...]:
    """`values` as a tuple. Raises LayoutError where they are no sequence, or are text."""
    try:
        if not isinstance(values, (str, bytes)):
            return tuple(values)
    except TypeError:
        pass
    raise LayoutError(f"{what}: a sequence is wanted, not {values!r:.80}")


def frozen(values: ArrayLike) -> NDArray[np.int64]:
    """A read-only copy as int64."""
    array: NDArray[np.int64] = np.array(values, dtype=np.int64, order="C")
    array.flags.writeable = False
    return array


def _names(names: Sequence[str] | None, rank: int) -> tuple[str, ...]:
    chosen = tuple(f"dim{i}" for i in range(rank)) if names is None else listed(names, "the names")
    if len(chosen) != rank:
        raise LayoutError(f"{len(chosen)} names for a mesh of {rank} dimensions: {chosen}")
    for name in chosen:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise LayoutError(f"{name!r:.80} cannot be the name of a mesh dimension")
    if len(set(chosen)) < rank:
        raise LayoutError(f"mesh dimensions have different names: {chosen}")
    return chosen


def _ranks(ranks: ArrayLike | None, shape: tuple[int, ...]) -> NDArray[np.int64]:
    size = math.prod(shape)
    try:
        grid = frozen(np.arange(size) if ranks is None else ranks)
    except (TypeError, ValueError, OverflowError):
        raise LayoutError(f"the ranks of a mesh are integers, not {ranks!r:.80}") from None
    if grid.size != size:
        raise LayoutError(f"{grid.size} ranks for a mesh of {shape}")
    if grid.min() < 0 or len(np.unique(grid)) < size:
        raise LayoutError("the ranks of a mesh are >= 0 and each stands in one place")
    return grid.reshape(shape)
