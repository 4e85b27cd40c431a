"""Views of memory: where the bytes of a tensor, an array or a buffer lie and how.

May import ffi and errors. Recognises torch and numpy through sys.modules and never imports torch; a
value can only be a tensor if its owner has imported torch already. Whether memory is a GPU's is
asked of the tensor, before anything of it is touched.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from transport.errors import InvalidUse
from transport.ffi import ffi
from transport.memory import cuda_array, dlpack
from transport.memory.device import KINDS, Device
from transport.memory.dtypes import BUFFER_FORMATS, ITEMSIZES
from transport.memory.layout import contiguous_strides, span

if TYPE_CHECKING:
    from collections.abc import Callable

_ADDRESS = ffi.typeof("uintptr_t")
_BYTES = ffi.typeof("char[]")


class View:
    """Where an array's elements lie. `owner` keeps the memory alive while the view does."""

    __slots__ = (
        "_strides",
        "address",
        "contiguous",
        "device",
        "dtype",
        "itemsize",
        "nbytes",
        "owner",
        "readonly",
        "shape",
    )

    def __init__(
        self,
        address: int,
        nbytes: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        itemsize: int,
        dtype: str | None,
        readonly: bool,
        owner: Any,
        device: Device | None = None,
    ) -> None:
        self.address = address  # of the first element
        self.nbytes = nbytes  # of the elements, without gaps
        self.shape = shape
        self._strides = strides  # bytes; None: contiguous
        self.contiguous = strides is None
        self.itemsize = itemsize
        self.dtype = dtype  # None: plain bytes
        self.readonly = readonly
        self.owner = owner  # the tensor or array; (object, what pins it) for others
        self.device = device  # the GPU whose memory it is, which no CPU may touch; None: host

    @property
    def strides(self) -> tuple[int, ...]:
        if self._strides is None:
            return contiguous_strides(self.shape, self.itemsize)
        return self._strides


def view(x: Any) -> View:
    """The view of a torch tensor, numpy array, DLPack producer, buffer object, or array on a GPU
    that has `__cuda_array_interface__`.

    Raises InvalidUse for what has no memory of its own or no plain layout.
    """
    viewer = _VIEWERS.get(type(x))
    if viewer is None:
        viewer = _find_viewer(x)
    return viewer(x)


def host_view(x: Any, what: str) -> View:
    """As `view`. Raises InvalidUse for memory of a GPU; `what` says what the CPU wants of it."""
    found = view(x)
    if found.device is not None:
        raise InvalidUse(f"{what} must be in host memory, not on {found.device}: use .cpu()")
    return found


def storage_of(view: View) -> Any:
    """The object whose death means that the memory is gone, or None where nothing tells it.

    It can be referred to weakly. All views of one tensor's memory give the same object.
    """
    owner = view.owner
    if isinstance(owner, tuple):
        return owner[0] if getattr(type(owner[0]), "__weakrefoffset__", 0) else None
    if hasattr(owner, "untyped_storage"):
        return owner.untyped_storage()
    return _array_root(owner)


def identity_of(view: View) -> int:
    """The same number for all views of one storage object, while one of them is alive."""
    storage = storage_of(view)
    return id(view.owner[0] if storage is None else storage)


def extent_of(storage: Any, view: View) -> tuple[int, int]:
    """Address and size of the whole storage, as they are now; `view` is one of its views."""
    if hasattr(storage, "data_ptr"):
        return storage.data_ptr(), storage.nbytes()
    if isinstance(storage, getattr(sys.modules.get("numpy"), "ndarray", ())):
        return span_of(_array_view(storage))
    return span_of(view)


def whole(storage: Any, part: View) -> View:
    """The view of all of a storage, of which `part` is a view."""
    if part.device is not None and hasattr(storage, "data_ptr"):  # no kernel is needed to name it
        address, size = storage.data_ptr(), storage.nbytes()
        return View(address, size, (size,), None, 1, "uint8", False, part.owner, part.device)
    if hasattr(storage, "data_ptr"):
        torch = sys.modules["torch"]
        return view(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage))
    if isinstance(storage, getattr(sys.modules.get("numpy"), "ndarray", ())):
        return _array_view(storage)
    return part


def span_of(view: View) -> tuple[int, int]:
    """Address and length of what lies between the first and the last byte of its elements."""
    low, high = span(view.shape, view.strides, view.itemsize)
    return view.address + low, high - low


def _find_viewer(x: Any) -> Callable[[Any], View]:
    kind = type(x)
    torch = sys.modules.get("torch")
    numpy = sys.modules.get("numpy")
    viewer: Callable[[Any], View]
    if isinstance(x, getattr(torch, "Tensor", ())):
        viewer = _tensor_view
    elif isinstance(x, getattr(numpy, "ndarray", ())):
        viewer = _array_view
    elif hasattr(kind, "__cuda_array_interface__"):
        viewer = _cuda_array_view
    elif hasattr(kind, "__dlpack__"):
        viewer = _dlpack_view
    else:
        viewer = _buffer_view
    if len(_VIEWERS) < 256:  # a program that makes classes in a loop must not grow us
        _VIEWERS[kind] = viewer
    return viewer


_VIEWERS: dict[type, Callable[[Any], View]] = {}


# ------------------------------------------------------------------------------------------- torch
def _tensor_view(tensor: Any) -> View:
    known = _TORCH_DTYPES.get(tensor.dtype)
    fits = tensor.is_cpu or tensor.is_cuda
    if known is None or not fits or tensor.is_conj() or tensor.is_neg():
        known = _check_tensor(tensor)
    try:
        address = tensor.data_ptr()
    except RuntimeError as error:  # sparse and other tensors without storage
        _check_tensor(tensor)
        raise InvalidUse(f"this tensor has no plain memory: {error}") from None
    dtype, itemsize = known
    strides = None
    if not tensor.is_contiguous():
        strides = tuple(step * itemsize for step in tensor.stride())
    shape = tensor.shape
    device = None if tensor.is_cpu else _gpu_of(tensor)
    return View(address, tensor.nbytes, shape, strides, itemsize, dtype, False, tensor, device)


def _gpu_of(tensor: Any) -> Device:
    where = tensor.device
    return Device(where.type, where.index or 0)


_TORCH_DTYPES: dict[Any, tuple[str, int]] = {}


def _check_tensor(tensor: Any) -> tuple[str, int]:
    """The dtype's name and size; fills the table of dtypes at first sight. Raises InvalidUse."""
    if tensor.is_meta:
        raise InvalidUse("a meta tensor has no memory; materialize it first")
    if tensor.device.type not in ("cpu", *KINDS):
        where = tensor.device
        raise InvalidUse(f"the tensor is on {where}; only host and GPU memory move: use .cpu()")
    if str(tensor.layout) != "torch.strided":
        raise InvalidUse(f"the tensor's layout is {tensor.layout}; move its parts, or .to_dense()")
    if tensor.is_conj() or tensor.is_neg():
        raise InvalidUse(
            "the tensor is a lazy conjugate or negative; call .resolve_conj().resolve_neg()"
        )
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_quantized or name not in ITEMSIZES:
        raise InvalidUse(
            f"elements of dtype {tensor.dtype} cannot be named; use .view(torch.uint8)"
        )
    known = _TORCH_DTYPES[tensor.dtype] = (name, ITEMSIZES[name])
    return known


# ------------------------------------------------------------------------------------------- numpy
def _array_view(array: Any) -> View:
    dtype = _NUMPY_DTYPES.get(array.dtype, _UNSEEN)
    if dtype is _UNSEEN:
        dtype = _check_dtype(array.dtype)
    shape, itemsize, flags = array.shape, array.itemsize, array.flags
    strides = None if flags.c_contiguous else array.strides
    if dtype is None and itemsize != 1:
        # Plain bytes have no element; each of the array's is a dimension of bytes.
        strides = None if strides is None else (*strides, 1)
        shape, itemsize = (*shape, itemsize), 1
    address = _array_address(array)
    readonly = not flags.writeable
    return View(address, array.nbytes, shape, strides, itemsize, dtype, readonly, array)


_UNSEEN: Any = object()
_NUMPY_DTYPES: dict[Any, str | None] = {}


def _array_address(array: Any) -> int:
    try:
        return int(ffi.cast(_ADDRESS, ffi.from_buffer(_BYTES, array)))
    except (BufferError, ValueError):  # strided, or a dtype that the buffer protocol lacks
        return int(array.__array_interface__["data"][0])


def _check_dtype(dtype: Any) -> str | None:
    if dtype.hasobject:
        raise InvalidUse(f"an array of dtype {dtype} holds Python objects, which cannot move")
    if not dtype.isnative:
        raise InvalidUse(f"an array of dtype {dtype} has foreign byte order; use .astype first")
    name = dtype.name if dtype.name in ITEMSIZES else None
    _NUMPY_DTYPES[dtype] = name
    return name


def _array_root(array: Any) -> Any:
    """The outermost array of a chain of views; all views of one memory share it."""
    root = array
    while isinstance(root.base, sys.modules["numpy"].ndarray):
        root = root.base
    return root


# ----------------------------------------------------------------------------------- other objects
def _dlpack_view(x: Any) -> View:
    found = dlpack.read(x)
    return View(
        found.address,
        found.nbytes,
        found.shape,
        found.strides,
        found.itemsize,
        found.dtype,
        found.readonly,
        (x, found.capsule),
        found.device,
    )


def _cuda_array_view(x: Any) -> View:
    found = cuda_array.read(x)
    if found is None:  # on the CPU after all, or of a dtype that only DLPack names
        return _dlpack_view(x) if hasattr(type(x), "__dlpack__") else _buffer_view(x)
    return View(
        found.address,
        found.nbytes,
        found.shape,
        found.strides,
        found.itemsize,
        found.dtype,
        found.readonly,
        (x, None),
        found.device,
    )


def _buffer_view(x: Any) -> View:
    try:
        memory = memoryview(x)
    except TypeError:
        raise InvalidUse(
            f"a {type(x).__name__} has no memory to move; use a torch tensor, a numpy array, or an"
            " object with the buffer protocol or DLPack"
        ) from None
    except BufferError as error:
        raise InvalidUse(f"this {type(x).__name__} does not give its memory: {error}") from None
    if not memory.c_contiguous:
        return _strided_buffer_view(memory)
    pinned = ffi.from_buffer(_BYTES, memory)
    address = int(ffi.cast(_ADDRESS, pinned))
    dtype = BUFFER_FORMATS.get(memory.format.lstrip("@<="))
    itemsize, shape = memory.itemsize, tuple(memory.shape or ())
    if dtype is None or ITEMSIZES[dtype] != itemsize:
        dtype, itemsize, shape = None, 1, (memory.nbytes,)
    # `pinned` holds the exporter's buffer, so that a bytearray cannot be resized meanwhile.
    owner = (x, pinned)
    return View(address, memory.nbytes, shape, None, itemsize, dtype, memory.readonly, owner)


def _strided_buffer_view(memory: memoryview) -> View:
    import numpy

    found = _array_view(numpy.asarray(memory))
    if memory.format in ("B", "b", "c"):
        found.dtype = None
    return found
