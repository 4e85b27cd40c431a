"""Memory as allocators with expandable segments map it: one range of addresses, physical chunks one
after another in it. Done with the driver's own functions, as torch does.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING

from transport.types import Closing

if TYPE_CHECKING:
    from gpu_double import GpuDouble

_U64 = ctypes.c_uint64
# type PINNED, handle type POSIX descriptor, location DEVICE 0, GPU-direct capable.
_PROPERTIES = struct.pack("<iiiiQBBHI", 1, 1, 1, 0, 0, 0, 1, 0, 0)
_ACCESS = struct.pack("<iii", 1, 0, 3)  # location DEVICE 0, READWRITE


class Expandable(Closing):
    """At most `most` chunks."""

    def __init__(self, gpu: GpuDouble, most: int = 16) -> None:
        self.gpu, self.most = gpu, most
        self.chunk = 2 << 20
        self._handles: list[int] = []
        out = _U64()
        nothing = ctypes.c_size_t(0), _U64(0), ctypes.c_ulonglong(0)
        size = ctypes.c_size_t(most * self.chunk)
        self._call("AddressReserve", ctypes.byref(out), size, *nothing)
        self.address = out.value

    def grow(self, chunks: int) -> None:
        for _ in range(chunks):
            handle, size = _U64(), ctypes.c_size_t(self.chunk)
            at = _U64(self.address + len(self._handles) * self.chunk)
            none = ctypes.c_ulonglong(0)
            self._call("Create", ctypes.byref(handle), size, _PROPERTIES, none)
            self._call("Map", at, size, ctypes.c_size_t(0), handle, none)
            self._call("SetAccess", at, size, _ACCESS, ctypes.c_size_t(1))
            self._handles.append(handle.value)

    def shrink(self, chunks: int) -> None:
        for _ in range(chunks):
            handle = self._handles.pop()
            at = _U64(self.address + len(self._handles) * self.chunk)
            self._call("Unmap", at, ctypes.c_size_t(self.chunk))
            self._call("Release", _U64(handle))

    def close(self) -> None:
        self.shrink(len(self._handles))
        size = ctypes.c_size_t(self.most * self.chunk)
        self._call("AddressFree", _U64(self.address), size)

    def _call(self, name: str, *arguments: object) -> None:
        self.gpu.call(f"cuMem{name}", f"hipMem{name}", *arguments)
