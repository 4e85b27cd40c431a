"""How the bytes of an N-dimensional array lie in memory, and how two such arrays become row copies.

Pure arithmetic on shapes and byte strides; imports nothing of the package.

A pair of arrays of one shape is walked together. Dimensions are dropped when their length is 1 and
joined when both sides allow it; the innermost run that is contiguous on both sides is a row, the
dimension above it becomes the rows of one range, and what is left is a list of ranges.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Rows(NamedTuple):
    """`rows` rows of `length` bytes; offsets count from each side's first element."""

    left: int
    right: int
    length: int
    rows: int
    left_stride: int
    right_stride: int

    def flipped(self) -> Rows:
        """The same copy with the sides exchanged."""
        return Rows(
            self.right, self.left, self.length, self.rows, self.right_stride, self.left_stride
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


class _Dim(NamedTuple):
    size: int
    left: int  # bytes from one element to the next
    right: int


def _joined(shape: Sequence[int], left: Sequence[int], right: Sequence[int]) -> list[_Dim]:
    """The dimensions, outermost first, without those of length 1 and with neighbours joined."""
    dims: list[_Dim] = []
    for dim in map(_Dim, shape, left, right):
        if dim.size == 1:
            continue
        if dims:
            outer = dims[-1]
            if outer.left == dim.left * dim.size and outer.right == dim.right * dim.size:
                dims[-1] = _Dim(outer.size * dim.size, dim.left, dim.right)
                continue
        dims.append(dim)
    return dims


def _ordered(
    shape: Sequence[int], left: Sequence[int], right: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """The dimensions by falling stride on the right, so that two transposed arrays join too."""
    order = sorted(range(len(shape)), key=lambda i: (-abs(right[i]), -abs(left[i])))
    return [shape[i] for i in order], [left[i] for i in order], [right[i] for i in order]


def pair_rows(
    shape: Sequence[int], left: Sequence[int], right: Sequence[int], itemsize: int
) -> Iterator[Rows]:
    """The row copies between two arrays of one shape and element size, given their byte strides.

    Every element is in exactly one row. The order of the rows is not that of the elements.
    """
    if 0 in shape:
        return
    dims = _joined(*_ordered(shape, left, right))
    length = itemsize
    if dims and dims[-1].left == itemsize and dims[-1].right == itemsize:
        length = itemsize * dims.pop().size
    # Any dimension can be the rows of a range; the longest one leaves the fewest ranges.
    longest = max(range(len(dims)), key=lambda i: dims[i].size, default=-1)
    rows = dims.pop(longest) if dims else _Dim(1, 0, 0)
    for index in product(*(range(dim.size) for dim in dims)):
        yield Rows(
            sum(i * dim.left for i, dim in zip(index, dims)),
            sum(i * dim.right for i, dim in zip(index, dims)),
            length,
            rows.size,
            rows.left,
            rows.right,
        )


def bytes_rows(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Iterator[Rows]:
    """The row copies between an array (left) and flat bytes in the array's C order (right)."""
    return pair_rows(shape, strides, contiguous_strides(shape, itemsize), itemsize)
