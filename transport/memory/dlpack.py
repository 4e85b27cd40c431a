"""Reads what a DLPack producer exports: https://dmlc.github.io/dlpack (struct DLManagedTensor).

May import errors. The capsule is kept and never consumed: when it dies unconsumed, the producer's
own destructor frees the tensor, so no deleter is ever called from here.
"""

from __future__ import annotations

import ctypes
import operator
from typing import Any, NamedTuple

from transport.errors import InvalidUse
from transport.memory.device import Device
from transport.memory.dtypes import ITEMSIZES
from transport.memory.layout import count, is_contiguous

# DLDeviceType. Pinned host memory is host memory; managed memory, which moves by itself, is taken
# for the GPU's: no NIC can have it, and a CPU that touches it may wait for the GPU.
_HOST = (1, 3, 11)  # kDLCPU, kDLCUDAHost, kDLROCMHost
_DEVICES = {2: "cuda", 10: "hip", 13: "cuda"}  # kDLCUDA, kDLROCM, kDLCUDAManaged
_UNORDERED = -1  # the stream that asks the producer for no synchronization: submit orders it
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY

# (DLDataTypeCode, bits) of the types that have a name here.
_DTYPES = {
    (0, 8): "int8",
    (0, 16): "int16",
    (0, 32): "int32",
    (0, 64): "int64",
    (1, 8): "uint8",
    (1, 16): "uint16",
    (1, 32): "uint32",
    (1, 64): "uint64",
    (2, 16): "float16",
    (2, 32): "float32",
    (2, 64): "float64",
    (4, 16): "bfloat16",
    (5, 32): "complex32",
    (5, 64): "complex64",
    (5, 128): "complex128",
    (6, 8): "bool",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu",
}


CODES = {name: code for code, name in _DTYPES.items()}
"""(DLDataTypeCode, bits) by name."""


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned, of any 1.x."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


class Exported(NamedTuple):
    """What a capsule says, in bytes. `strides` is None where the elements are contiguous."""

    address: int
    nbytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    itemsize: int
    dtype: str
    readonly: bool
    capsule: Any
    device: Device | None


def read(x: Any) -> Exported:
    """Asks `x` for its memory. Raises InvalidUse where it is neither the host's nor a GPU's, or of
    no known dtype.
    """
    kind, index = _device_of(x)
    if kind not in _HOST and kind not in _DEVICES:
        raise InvalidUse(f"the array is on a device of DLPack type {kind}, no host or GPU")
    device = Device(_DEVICES[kind], index) if kind in _DEVICES else None
    capsule = _export(x, {} if device is None else {"stream": _UNORDERED})
    tensor, readonly = _open(capsule)
    dtype = _DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        what = f"code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
        raise InvalidUse(f"an array of DLPack type ({what}) cannot be named here; view it as uint8")
    itemsize = ITEMSIZES[dtype]
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
    strides = None
    if tensor.strides and tensor.ndim:
        strides = tuple(step * itemsize for step in tensor.strides[: tensor.ndim])
        strides = None if is_contiguous(shape, strides, itemsize) else strides
    address = (tensor.data or 0) + tensor.byte_offset
    nbytes = count(shape) * itemsize
    return Exported(address, nbytes, shape, strides, itemsize, dtype, readonly, capsule, device)


def _device_of(x: Any) -> tuple[int, int]:
    told = x.__dlpack_device__()
    try:
        kind, index = map(operator.index, told)
    except (TypeError, ValueError):
        kind = index = -1
    if index < 0:
        raise InvalidUse(f"{told!r:.80} of {type(x).__name__}.__dlpack_device__() is no device")
    return kind, index


def _export(x: Any, order: dict[str, int]) -> Any:
    try:
        return x.__dlpack__(max_version=(1, 0), copy=False, **order)
    except TypeError:  # a producer from before DLPack 1.0
        return x.__dlpack__(**order)
    except BufferError as error:
        raise InvalidUse(f"this {type(x).__name__} does not give its memory: {error}") from None


def _open(capsule: Any) -> tuple[_Tensor, bool]:
    """The tensor in a capsule that stays the producer's, and whether it is read-only."""
    for name, kind in ((b"dltensor_versioned", _Versioned), (b"dltensor", _Tensor)):
        if _is_valid(capsule, name):
            found = kind.from_address(_get_pointer(capsule, name))
            if isinstance(found, _Tensor):
                return found, False  # the tensor comes first in the old struct
            if found.major != 1:
                raise InvalidUse(f"DLPack version {found.major} is unknown here")
            return found.tensor, bool(found.flags & _READ_ONLY)
    raise InvalidUse("__dlpack__() gave no DLPack capsule")


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
