"""Bytes of a tensor on a GPU, named without a kernel of torch's or a look at them.

May import engine and memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transport.engine.blocks import Blocks

if TYPE_CHECKING:
    from transport.memory.remote import RemoteRegion


class Stretch:
    """`size` bytes from byte `start` on of a contiguous tensor, which it keeps. It is sliced like
    the flat tensor that stands for the bytes of a CPU's."""

    __slots__ = ("_size", "_start", "tensor")

    def __init__(self, tensor: Any, start: int, size: int) -> None:
        self.tensor = tensor
        self._start = start
        self._size = size

    def numel(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> Stretch:
        start, stop, _ = part.indices(self._size)
        return Stretch(self.tensor, self._start + start, max(stop - start, 0))

    @property
    def address(self) -> int:
        return int(self.tensor.data_ptr()) + self._start

    @property
    def local(self) -> Any:
        """As the local side of a Read."""
        if self._size == self.tensor.nbytes:
            return self.tensor
        return Blocks(self.tensor, [self._start], self._size)

    def of(self, whole: RemoteRegion) -> RemoteRegion:
        """The same bytes of the tensor as others see it."""
        return whole.bytes(self._start, self._start + self._size)
