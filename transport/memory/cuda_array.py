"""Reads what `__cuda_array_interface__` tells of an array on a GPU (Numba's specification, v3):
https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html

May import errors and ffi. The protocol names no device: the driver is asked whose the address is.
"""

from __future__ import annotations

import operator
import re
from typing import Any, NamedTuple

from transport.errors import InvalidUse
from transport.memory.device import Device
from transport.memory.dtypes import ITEMSIZES
from transport.memory.gpu import device_of
from transport.memory.layout import count, is_contiguous

_CODES = {"f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool"}
_TYPESTR = re.compile(r"([<>|=])([a-zA-NP-Z])([1-9][0-9]{0,8})", re.ASCII)  # no Python objects
_MOST = 1 << 63


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

    Raises InvalidUse where the memory is no GPU's, masked, of Python objects, or told of amiss,
    Unavailable without a GPU driver.
    """
    told = getattr(x, "__cuda_array_interface__", None)
    if told is None:
        return None
    try:
        address, readonly, shape, strides, typestr = _fields(told)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidUse(
            f"the __cuda_array_interface__ of a {type(x).__name__} is none of version 3:"
            f" {error!r:.200}"
        ) from None
    dtype, itemsize = _dtype(typestr)
    if dtype is None:  # each element is a dimension of bytes
        shape, itemsize = (*shape, itemsize), 1
    nbytes = count(shape) * itemsize
    if nbytes >= _MOST or not 0 <= address < _MOST:
        raise InvalidUse(f"{nbytes} bytes at {address:#x} are beyond any memory")
    if strides is not None:
        strides = strides if dtype is not None else (*strides, 1)
        strides = None if is_contiguous(shape, strides, itemsize) else strides
    device = device_of(address) if nbytes else Device("cuda", 0)
    return CudaArray(address, nbytes, shape, strides, itemsize, dtype, readonly, device)


def _fields(told: Any) -> tuple[int, bool, tuple[int, ...], tuple[int, ...] | None, str]:
    """Address, whether it is read-only, shape, strides, typestr."""
    if told.get("mask") is not None:
        raise InvalidUse("a masked array on a GPU cannot move; move its data and its mask")
    address, readonly = told["data"]
    shape = tuple(map(operator.index, told["shape"]))
    strides = told.get("strides")
    if strides is not None:
        strides = tuple(map(operator.index, strides))
        if len(strides) != len(shape):
            raise ValueError(f"strides {strides} of the shape {shape}")
        if any(not -_MOST < step < _MOST for step in strides):
            raise ValueError(f"strides {strides}")
    if any(size < 0 for size in shape):
        raise ValueError(f"a shape {shape}")
    start: Any = 0 if address is None and 0 in shape else address
    return operator.index(start), bool(readonly), shape, strides, told["typestr"]


def _dtype(typestr: Any) -> tuple[str | None, int]:
    match = _TYPESTR.fullmatch(typestr) if isinstance(typestr, str) else None
    if match is None:
        raise InvalidUse(f"an array of type {typestr!r:.80} on a GPU has no plain bytes to move")
    order, code, size = match[1], match[2], int(match[3])
    if order == ">" and size > 1:
        raise InvalidUse(f"an array of type {typestr} has foreign byte order")
    name = _CODES.get(code, "")
    name = name if name == "bool" else f"{name}{8 * size}"
    return (name, size) if ITEMSIZES.get(name) == size else (None, size)
