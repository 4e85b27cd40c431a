"""Very many N-d copies between many memories here and many regions, described by arrays.

May import nothing of the package at run time: packing.py checks them and makes ranges of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy import int64
    from numpy.typing import NDArray

    from transport.memory.remote import RemoteRegion

    Numbers = NDArray[int64]


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """n copies of boxes, as a request beside `Read` and `Write`: no object for any one of them.

    Copy i is between `local[local_index[i]]` and `remote[remote_index[i]]`. It has runs of
    `length[i]` bytes, one for each index of an array of shape `sizes[i]`; the first begins
    `local_start[i]` bytes after the first element of its memory and `remote_start[i]` after that
    of its remote region, and the others lie by `local_strides[i]` and `remote_strides[i]`. All
    numbers are bytes. dtypes and shapes are not compared; what lies outside is refused
    (InvalidUse, OutOfRange). Whether destinations overlap is not looked at: what is in bytes that
    two copies write is one of both.
    """

    op: int
    """READ or WRITE, for all of them."""
    local: Sequence[Any]
    """Tensors, arrays, buffers or Regions."""
    remote: Sequence[RemoteRegion]
    """Of any number of peers."""
    local_index: Numbers
    """(n,)"""
    remote_index: Numbers
    """(n,)"""
    local_start: Numbers
    """(n,)"""
    remote_start: Numbers
    """(n,)"""
    length: Numbers
    """(n,)"""
    sizes: Numbers
    """(n, d), the outermost dimension first"""
    local_strides: Numbers
    """(n, d)"""
    remote_strides: Numbers
    """(n, d)"""

    def __len__(self) -> int:
        return len(self.length)
