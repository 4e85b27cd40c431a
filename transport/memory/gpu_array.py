"""An array in a GPU's memory, for whoever has no torch, and the way to a tensor for who has.

May import ffi, dlpack, gpu_pool and errors. It does no arithmetic: others take its memory, by
DLPack (https://dmlc.github.io/dlpack) or `__cuda_array_interface__`.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from transport.errors import InvalidUse
from transport.ffi import check, ffi, lib
from transport.memory.dlpack import CODES
from transport.memory.driver import driver
from transport.memory.dtypes import ITEMSIZES
from transport.memory.layout import count

if TYPE_CHECKING:
    from transport.memory.device import Device
    from transport.memory.gpu_pool import Block

_CUDA, _ROCM = 2, 10  # DLDeviceType
_TYPESTRS = {
    name: f"<{letter}{ITEMSIZES[name]}"
    for letter, names in {
        "f": ("float16", "float32", "float64"),
        "i": ("int8", "int16", "int32", "int64"),
        "u": ("uint8", "uint16", "uint32", "uint64"),
        "c": ("complex64", "complex128"),
    }.items()
    for name in names
}
_TYPESTRS["bool"] = "|b1"


class GpuArray:
    """Contiguous elements in memory of the engine's pool. Made by `Engine.empty`."""

    __slots__ = ("__weakref__", "_block", "device", "dtype", "shape")

    def __init__(self, block: Block, shape: tuple[int, ...], dtype: str) -> None:
        self._block = block
        self.device: Device = block.device
        self.dtype = dtype
        self.shape = shape

    @property
    def nbytes(self) -> int:
        return count(self.shape) * ITEMSIZES[self.dtype]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3; of the dtypes that numpy has. Others are had by DLPack."""
        typestr = _TYPESTRS.get(self.dtype)
        if typestr is None:
            raise AttributeError(f"the array interface has no name for {self.dtype}")
        address = self._block.address if self.nbytes else 0
        where = {"data": (address, False), "strides": None, "version": 3}
        return {"shape": self.shape, "typestr": typestr, **where}

    def __dlpack_device__(self) -> tuple[int, int]:
        return _device_type(), self.device.ordinal

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule of DLPack's unversioned struct. Nothing is under way here: no stream waits."""
        if copy:
            raise BufferError("this array is not copied; copy what you made of it")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"this array is on {self.device}")
        return capsule_over(self._block, self.shape, self.dtype)

    def __repr__(self) -> str:
        return f"<GpuArray {self.dtype}{list(self.shape)} on {self.device}>"


def capsule_over(block: Block, shape: tuple[int, ...], dtype: str) -> Any:
    """A DLPack capsule whose consumer keeps the block."""
    if len(shape) > _MOST_DIMS:
        raise InvalidUse(f"a tensor of {len(shape)} dimensions; at most {_MOST_DIMS}")
    tensor = ffi.new("struct tn_device_tensor *")
    tensor.device_type, tensor.device = _device_type(), block.device.ordinal
    tensor.code, tensor.bits = CODES[dtype]
    tensor.offset = block.offset
    tensor.dims = len(shape)
    tensor.shape[0 : len(shape)] = list(shape)
    out = ffi.new("void **")
    check(lib.tn_device_block_tensor(block.pointer, tensor, out))
    return _new_capsule(int(ffi.cast("uintptr_t", out[0])), _NAME, _destructor)


def _device_type() -> int:
    """Of the driver: what torch calls cuda is ROCm's in a ROCm build of torch."""
    return _ROCM if driver().platform == "rocm" else _CUDA


_MOST_DIMS = 64
_NAME = b"dltensor"
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
# By address, not as objects: a capsule that is being freed must not be referred to.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def _drop_untaken(capsule: int) -> None:
    """A capsule ends: who takes what is in it has renamed it."""
    if _is_valid(capsule, _NAME):
        lib.tn_device_tensor_drop(ffi.cast("void *", _get_pointer(capsule, _NAME)))


_destructor = _DESTRUCTOR(_drop_untaken)
# For ever: capsules may outlive this module.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_destructor))
