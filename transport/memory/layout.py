"""How the bytes of an N-dimensional array lie in memory, and how two such arrays become row copies.

Pure arithmetic on shapes and byte strides; imports nothing of the package.

A pair of arrays of one shape is walked together. Dimensions are dropped when their length is 1 and
joined when both sides allow it; the innermost run that is contiguous on both sides is a row, the
dimension above it becomes the rows of one range, and those round it are its outer dimensions, which
C walks. Only arrays of more dimensions than C takes, after all that, are several ranges.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


MAX_OUTER = 6  # TN_MAX_OUTER


class Dim(NamedTuple):
    """A dimension of two arrays of one shape."""

    size: int
    left: int  # bytes from one element to the next
    right: int


class Rows(NamedTuple):
    """`rows` rows of `length` bytes; offsets count from each side's first element.

    All of that once for each index of the `outer` dimensions, the outermost first.
    """

    left: int
    right: int
    length: int
    rows: int
    left_stride: int
    right_stride: int
    outer: tuple[Dim, ...] = ()

    def flipped(self) -> Rows:
        """The same copy with the sides exchanged."""
        outer = tuple([Dim(dim.size, dim.right, dim.left) for dim in self.outer])
        return Rows(
            self.right,
            self.left,
            self.length,
            self.rows,
            self.right_stride,
            self.left_stride,
            outer,
        )


def contiguous_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Byte strides of a C-contiguous array."""
    strides: list[int] = []
    step = itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_contiguous(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether the bytes lie in C order without a gap; a dimension of length 1 has any stride."""
    if 0 in shape:
        return True
    expected = itemsize
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def count(shape: Sequence[int]) -> int:
    """How many elements an array of this shape has."""
    elements = 1
    for size in shape:
        elements *= size
    return elements


def span(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[int, int]:
    """First and end byte that the array touches, counted from its first element (so first <= 0)."""
    if 0 in shape:
        return 0, 0
    low, high = 0, itemsize
    for size, stride in zip(shape, strides):
        reach = (size - 1) * stride
        if reach < 0:
            low += reach
        else:
            high += reach
    return low, high


def overlaps_itself(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether two elements may share a byte (expanded or overlapping windows), judged safely.

    Sorted by stride, each dimension must step over all that the smaller ones cover. Every array
    that slicing and transposing make passes; a few exotic ones that interleave do not.
    """
    dims = sorted((abs(stride), size) for size, stride in zip(shape, strides) if size > 1)
    covered = itemsize
    for stride, size in dims:
        if stride < covered:
            return 0 not in shape
        covered += stride * (size - 1)
    return False


def _upright(dims: list[Dim]) -> tuple[int, int, list[Dim]]:
    """Where to begin on each side so that no dimension runs backwards on both, and these without
    those of length 1.
    """
    left = right = 0
    upright: list[Dim] = []
    for dim in dims:
        if dim.size == 1:
            continue
        if dim.right < 0 or (dim.right == 0 and dim.left < 0):
            left += (dim.size - 1) * dim.left
            right += (dim.size - 1) * dim.right
            dim = Dim(dim.size, -dim.left, -dim.right)
        upright.append(dim)
    return left, right, upright


def _joined(dims: list[Dim]) -> list[Dim]:
    """By falling stride on the right, so that two transposed arrays join too, and neighbours that
    both sides allow to be one dimension joined.
    """
    joined: list[Dim] = []
    for dim in sorted(dims, key=lambda dim: (-dim.right, -abs(dim.left))):
        if joined:
            outer = joined[-1]
            if outer.left == dim.left * dim.size and outer.right == dim.right * dim.size:
                joined[-1] = Dim(outer.size * dim.size, dim.left, dim.right)
                continue
        joined.append(dim)
    return joined


def pair_rows(
    shape: Sequence[int], left: Sequence[int], right: Sequence[int], itemsize: int
) -> Iterator[Rows]:
    """The row copies between two arrays of one shape and element size, given their byte strides.

    Every element is in exactly one row. The order of the rows is not that of the elements.
    """
    if 0 in shape:
        return
    first, other, upright = _upright(list(map(Dim, shape, left, right)))
    dims = _joined(upright)
    length = itemsize
    if dims and dims[-1].left == itemsize and dims[-1].right == itemsize:
        length = itemsize * dims.pop().size
    rows = dims.pop() if dims else Dim(1, 0, 0)
    many = max(len(dims) - MAX_OUTER, 0)
    beyond, outer = dims[:many], tuple(dims[many:])
    for index in product(*(range(dim.size) for dim in beyond)):
        yield Rows(
            first + sum(i * dim.left for i, dim in zip(index, beyond)),
            other + sum(i * dim.right for i, dim in zip(index, beyond)),
            length,
            rows.size,
            rows.left,
            rows.right,
            outer,
        )


def bytes_rows(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Iterator[Rows]:
    """The row copies between an array (left) and flat bytes in the array's C order (right)."""
    return pair_rows(shape, strides, contiguous_strides(shape, itemsize), itemsize)
