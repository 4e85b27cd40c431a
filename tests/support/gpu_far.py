"""The far process of a contract test, whose memory is a GPU's: see transport.testing.servant.

Run as the text `Way.prepare`; TN_GPU_MEMORY says how the memory is made.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from expandable import Expandable
from gpu_double import GpuDouble, Interfaced

from transport.testing.servant import pattern

if TYPE_CHECKING:
    from transport.memory.remote import RemoteRegion
    from transport.testing.servant import Servant

_CHUNK = 2 << 20
_LEAD = 520  # bytes before a region in its memory


class DeviceArray(Interfaced):
    """An array in memory of its own on GPU 0, which ends with it."""

    def __init__(self, double: GpuDouble, shape: tuple[int, ...], dtype: str) -> None:
        self.double, self.nbytes = double, int(np.prod(shape)) * np.dtype(dtype).itemsize
        whole = self.nbytes + _LEAD
        if os.environ["TN_GPU_MEMORY"] == "vmm":
            self._pieces = Expandable(double, -(-whole // _CHUNK))
            self._pieces.grow(self._pieces.most)
            self.address = self._pieces.address + _LEAD
        else:
            self._base = double.alloc(whole)
            self.address = self._base + _LEAD
        typestr = np.dtype(dtype).str
        super().__init__(data=(self.address, False), shape=shape, typestr=typestr)

    def tobytes(self) -> bytes:
        return self.double.bytes_at(self.address, self.nbytes) if self.nbytes else b""


def prepare(servant: Servant) -> None:
    """What the servant makes from now on is GPU memory; `make_private` makes the host's."""
    double = GpuDouble(os.environ.get("TN_GPU_DOUBLE", "cuda"))
    double.begin()

    def make(
        name: str,
        nbytes: int,
        *,
        seed: int = 0,
        shape: tuple[int, ...] | None = None,
        dtype: str = "uint8",
        pool: bool = False,
        access: Any = "read-write",
    ) -> RemoteRegion:
        dims = (nbytes // np.dtype(dtype).itemsize,) if shape is None else shape
        array = DeviceArray(double, dims, dtype)
        if nbytes:
            double.put(array.address, pattern(seed, nbytes).tobytes())
        engine = servant.engine
        assert engine is not None
        servant.arrays[name] = array
        servant.regions[name] = engine.register(array, access=access)
        return servant.regions[name].remote()

    servant.make_private = servant.make  # type: ignore[attr-defined]
    servant.make = make  # type: ignore[method-assign]
