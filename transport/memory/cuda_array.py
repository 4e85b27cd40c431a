"""Reads what `__cuda_array_interface__` tells of an array on a GPU (Numba's specification, v3):
https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html

May import errors and ffi. The protocol names no device: the driver is asked whose the address is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from transport.errors import InvalidUse
from transport.memory.device import Device
from transport.memory.dtypes import ITEMSIZES
from transport.memory.gpu import device_of
from transport.memory.layout import count, is_contiguous

_CODES = {"f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool"}


class CudaArray(NamedTuple):
    """What the interface says, in bytes. `strides` is None where the elements are contiguous."""

    address: int
    nbytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    itemsize: int
    dtype: str | None
    readonly: bool
    device: Device


def read(x: Any) -> CudaArray | None:
    """None where the object has the attribute but not the memory (a tensor on the CPU).

    Raises InvalidUse where the memory is no GPU's, or masked, Unavailable without a GPU driver.
    """
    told = getattr(x, "__cuda_array_interface__", None)
    if told is None:
        return None
    if told.get("mask") is not None:
        raise InvalidUse("a masked array on a GPU cannot move; move its data and its mask")
    address, readonly = told["data"]
    shape = tuple(told["shape"])
    dtype, itemsize = _dtype(told["typestr"])
    if dtype is None:  # each element is a dimension of bytes
        shape, itemsize = (*shape, itemsize), 1
    nbytes = count(shape) * itemsize
    strides = told.get("strides")
    if strides is not None:
        strides = tuple(strides) if dtype is not None else (*strides, 1)
        strides = None if is_contiguous(shape, strides, itemsize) else strides
    device = device_of(int(address)) if nbytes else Device("cuda", 0)
    return CudaArray(int(address), nbytes, shape, strides, itemsize, dtype, bool(readonly), device)


def _dtype(typestr: str) -> tuple[str | None, int]:
    order, code, size = typestr[0], typestr[1], int(typestr[2:])
    if order == ">" and size > 1:
        raise InvalidUse(f"an array of type {typestr} has foreign byte order")
    name = _CODES.get(code, "")
    name = name if name == "bool" else f"{name}{8 * size}"
    return (name, size) if ITEMSIZES.get(name) == size else (None, size)
