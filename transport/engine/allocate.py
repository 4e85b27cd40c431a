"""New tensors and arrays in memory that peers on this host can map, or on a GPU.

May import memory and errors. Never imports torch: a torch dtype can only come from who has.
"""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING, Any

from transport.errors import InvalidUse, Unavailable
from transport.ffi import ffi
from transport.memory.dtypes import ITEMSIZES
from transport.memory.gpu_array import GpuArray, capsule_over
from transport.memory.layout import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.memory.device import Device
    from transport.memory.gpu_pool import GpuPool
    from transport.memory.pool import Pool
    from transport.types import Access


_NO_GPU = "`transport doctor` tells what this host has; leave out device= for host memory"


def empty_on(pool: GpuPool, shape: int | Sequence[int], dtype: Any, device: Device) -> Any:
    """An uninitialised tensor (for a torch dtype) or GpuArray (for any other) on a GPU."""
    dims = _dims(shape)
    torch = sys.modules.get("torch")
    typed = isinstance(dtype, getattr(torch, "dtype", ()))
    name = str(dtype).removeprefix("torch.") if typed else _name_of(dtype)
    if name not in ITEMSIZES:
        raise InvalidUse(f"memory of a GPU cannot have the dtype {dtype!r}")
    try:
        block = pool.take(_nbytes(dims, ITEMSIZES[name]), device)
    except Unavailable as error:
        raise Unavailable(error.reason, _NO_GPU) from None
    if torch is None or not typed:
        return GpuArray(block, dims, name)
    return torch.utils.dlpack.from_dlpack(capsule_over(block, dims, name))


def _name_of(dtype: Any) -> str:
    if isinstance(dtype, str) and dtype in ITEMSIZES:
        return dtype
    import numpy

    try:
        return str(numpy.dtype(dtype))
    except TypeError:
        raise InvalidUse(f"there is no dtype {dtype!r}") from None


def empty(pool: Pool, shape: int | Sequence[int], dtype: Any, access: Access) -> Any:
    """An uninitialised torch tensor (for a torch dtype) or numpy array (for any other dtype)."""
    dims = _dims(shape)
    torch = sys.modules.get("torch")
    if isinstance(dtype, getattr(torch, "dtype", ())):
        return _tensor(pool, torch, dims, dtype, access)
    return _array(pool, dims, dtype, access)


def storage(pool: Pool, torch: Any, nbytes: int, access: Access) -> Any:
    """A torch storage of so many bytes (at least one) in the pool. Its contents are unspecified."""
    memory = ffi.buffer(pool.take(nbytes, access), nbytes)
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()


def like(pool: Pool, template: Any, access: Access) -> Any:
    """A CPU tensor in the pool with the dtype, shape, strides and size of storage of a tensor."""
    torch = sys.modules["torch"]
    there = template.untyped_storage().nbytes()
    return over(storage(pool, torch, there, access), template)


def over(memory: Any, template: Any) -> Any:
    """A tensor of the template's dtype, shape, strides and offset over this storage. It is no view
    of another tensor.
    """
    torch: Any = sys.modules["torch"]
    made = torch.empty(0, dtype=template.dtype, device="cpu")
    return made.set_(memory, template.storage_offset(), template.size(), template.stride())


def _dims(shape: int | Sequence[int]) -> tuple[int, ...]:
    try:
        sizes = (shape,) if isinstance(shape, int) else shape
        dims = tuple(map(operator.index, sizes))
    except TypeError:
        raise InvalidUse(
            f"a shape is a whole number or a sequence of them, not {shape!r}"
        ) from None
    if any(size < 0 for size in dims):
        raise InvalidUse(f"the shape {dims} has a negative size")
    return dims


def _nbytes(dims: tuple[int, ...], itemsize: int) -> int:
    """Neither torch nor numpy takes dimensions whose product overflows, also where one is 0."""
    if count([size for size in dims if size]) * itemsize >= 1 << 63:
        raise InvalidUse(f"the shape {dims} is beyond any memory")
    return count(dims) * itemsize


def _tensor(pool: Pool, torch: Any, dims: tuple[int, ...], dtype: Any, access: Access) -> Any:
    nbytes = _nbytes(dims, dtype.itemsize)
    if nbytes == 0:
        return torch.empty(dims, dtype=dtype)
    memory = ffi.buffer(pool.take(nbytes, access), nbytes)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(dims)


def _array(pool: Pool, dims: tuple[int, ...], dtype: Any, access: Access) -> Any:
    import numpy

    try:
        kind = numpy.dtype(dtype)
    except TypeError:
        hint = f"; use torch.{dtype}" if isinstance(dtype, str) and dtype in ITEMSIZES else ""
        raise InvalidUse(f"numpy has no dtype {dtype!r}{hint}") from None
    if kind.subdtype is not None:
        raise InvalidUse(f"the dtype {kind} has dimensions of its own; put them into the shape")
    if kind.hasobject:
        raise InvalidUse("Python objects cannot be put into shared memory")
    nbytes = _nbytes(dims, kind.itemsize)
    if nbytes == 0:
        return numpy.empty(dims, kind)
    memory = ffi.buffer(pool.take(nbytes, access), nbytes)
    return numpy.frombuffer(memory, kind).reshape(dims)
