"""The doubles of the GPU drivers (native/fakes/fakecuda, fakehip) as a test handles them: memory,
streams and tensors "on a GPU", and their knobs.

May import the standard library, torch and the package's settings.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transport.config import Settings
from transport.memory.dlpack import CODES
from transport.memory.driver import choose

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FILES = {"cuda": "fakecuda.so", "rocm": "fakehip.so"}
_NAMES = {"cuda": "cuda", "rocm": "hip"}
_KINDS = {"cuda": 2, "rocm": 10}  # DLDeviceType
_SIZES = {name: bits // 8 for name, (_, bits) in CODES.items()}
_EXISTING = (
    *("physical", "handles", "reservations", "mappings", "pinned"),
    *("ipc_opened", "streams", "events"),
)

_U64 = ctypes.c_uint64


class _Dl(ctypes.Structure):
    """DLManagedTensor."""

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
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_lent: dict[int, Any] = {}  # by address: what a capsule's consumer uses


@_DELETER
def _forget(at: int) -> None:
    _lent.pop(at, None)


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class GpuDouble:
    """One double in this process, which the package uses as the driver."""

    def __init__(self, platform: str) -> None:
        self.platform = platform
        self.kind = _NAMES[platform]  # torch's device type
        self.file = str(Path(os.environ["TN_FAKES"]) / _FILES[platform])
        self.library = ctypes.CDLL(self.file)
        self.library.fakegpu_ctl.argtypes = [ctypes.c_char_p, ctypes.c_long]
        self.library.fakegpu_ctl.restype = ctypes.c_long
        self.library.fakegpu_get.argtypes = [ctypes.c_char_p]
        self.library.fakegpu_get.restype = ctypes.c_long
        self.library.fakegpu_peek.argtypes = [_U64, ctypes.c_size_t]
        self.library.fakegpu_peek.restype = ctypes.c_void_p
        self.library.fakegpu_fail.argtypes = [ctypes.c_char_p] + 3 * [ctypes.c_long]
        self._libc = ctypes.CDLL(None)
        self._libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    # -------------------------------------------------------------------------------------- driver
    def settings(self) -> dict[str, str]:
        """What makes an engine use it. A process has one driver for good."""
        return {"gpu_platform": self.platform, f"{_NAMES[self.platform]}_lib": self.file}

    def begin(self) -> None:
        """Knobs as at the beginning, and a context of the program's own on GPU 0."""
        self.library.fakegpu_reset()
        choose(Settings.from_env(**self.settings()))
        self.call("cuInit", "hipInit", 0)
        self.use(0)

    def call(self, cuda: str, hip: str, *arguments: Any) -> None:
        name = cuda if self.platform == "cuda" else hip
        error = getattr(self.library, name)(*arguments)
        assert error == 0, f"{name}: {error}"

    def use(self, device: int) -> None:
        """The program's own current device in this thread."""
        if self.platform == "rocm":
            self.call("", "hipSetDevice", device)
            return
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", "", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", "", context)

    def ctl(self, name: str, value: int) -> int:
        return int(self.library.fakegpu_ctl(name.encode(), value))

    def get(self, name: str) -> int:
        return int(self.library.fakegpu_get(name.encode()))

    @contextlib.contextmanager
    def leaves_nothing(self) -> Iterator[None]:
        """No more is there at the end than at the beginning, and nothing illegal was touched."""
        self.begin()
        before = {name: self.get(name) for name in _EXISTING}
        yield
        left = {name: self.get(name) for name in _EXISTING}
        assert all(left[name] <= before[name] for name in _EXISTING), f"{before} became {left}"
        assert self.get("illegal") == 0

    def calls(self, cuda: str, hip: str = "") -> int:
        return self.get(f"calls.{cuda if self.platform == 'cuda' else hip}")

    def fail(
        self, cuda: str, hip: str, *, after: int = 0, count: int = -1, code: int = 999
    ) -> None:
        name = cuda if self.platform == "cuda" else hip
        self.library.fakegpu_fail(name.encode(), after, count, code)

    # -------------------------------------------------------------------------------------- memory
    def alloc(self, nbytes: int) -> int:
        """As cudaMalloc gives it."""
        out = _U64()
        self.call("cuMemAlloc_v2", "hipMalloc", ctypes.byref(out), ctypes.c_size_t(nbytes))
        return out.value

    def managed(self, nbytes: int) -> int:
        """As cudaMallocManaged gives it."""
        out = _U64()
        size = ctypes.c_size_t(nbytes)
        self.call("cuMemAllocManaged", "hipMallocManaged", ctypes.byref(out), size, 1)
        return out.value

    def free(self, address: int) -> None:
        self.call("cuMemFree_v2", "hipFree", _U64(address))

    def put(self, address: int, data: bytes) -> None:
        """What a program copies to the GPU."""
        self._write(address, data)

    def _write(self, address: int, data: bytes) -> None:
        with self._peeked(address, len(data)) as at:
            ctypes.memmove(at, data, len(data))

    def bytes_at(self, address: int, nbytes: int) -> bytes:
        with self._peeked(address, nbytes) as at:
            return ctypes.string_at(at, nbytes)

    @contextlib.contextmanager
    def _peeked(self, address: int, nbytes: int) -> Iterator[int]:
        at = self.library.fakegpu_peek(address, nbytes)
        assert at, f"{address:#x} is not mapped"
        yield at
        self._libc.munmap(at & ~4095, nbytes + (at & 4095))

    # ------------------------------------------------------------------------------------- streams
    def stream(self) -> int:
        out = ctypes.c_void_p()
        self.call("cuStreamCreate", "hipStreamCreateWithFlags", ctypes.byref(out), ctypes.c_uint(1))
        return int(out.value or 0)

    def close_stream(self, stream: int) -> None:
        self.call("cuStreamDestroy_v2", "hipStreamDestroy", ctypes.c_void_p(stream))

    def sync(self, stream: int) -> None:
        self.call("cuStreamSynchronize", "hipStreamSynchronize", ctypes.c_void_p(stream))

    def fill(self, address: int, value: int, nbytes: int, stream: int) -> None:
        """A kernel that writes."""
        self.call(
            "cuMemsetD8Async",
            "hipMemsetAsync",
            _U64(address),
            ctypes.c_int(value),
            ctypes.c_size_t(nbytes),
            ctypes.c_void_p(stream),
        )

    # ------------------------------------------------------------------------------------- tensors
    def capsule(
        self,
        address: int,
        shape: Sequence[int],
        dtype: str = "uint8",
        *,
        strides: Sequence[int] | None = None,
        device: int = 0,
        kind: int | None = None,
    ) -> Any:
        """A DLPack capsule of somebody's who knows nothing of the package."""
        dims = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        steps = (ctypes.c_int64 * max(len(shape), 1))(*strides) if strides else None
        code, bits = CODES[dtype]
        managed = _Dl(
            data=address,
            device_type=_KINDS[self.platform] if kind is None else kind,
            device_id=device,
            ndim=len(shape),
            code=code,
            bits=bits,
            lanes=1,
            shape=dims,
            strides=steps,
        )
        where = ctypes.addressof(managed)
        managed.deleter = ctypes.cast(_forget, ctypes.c_void_p).value
        _lent[where] = managed, dims, steps
        return _new_capsule(where, b"dltensor", None)

    def tensor(self, address: int, shape: Sequence[int], dtype: str = "uint8", **more: Any) -> Any:
        """A torch tensor of device type cuda (hip) over the double's memory."""
        import torch

        torch.cuda._lazy_init = lambda: None  # a CPU build of torch has nothing to begin
        return torch.utils.dlpack.from_dlpack(self.capsule(address, shape, dtype, **more))

    def new(self, shape: Sequence[int], dtype: str = "uint8") -> Any:
        """A tensor in an allocation of its own, which the test frees (or not)."""
        nbytes = _SIZES[dtype]
        for size in shape:
            nbytes *= size
        return self.tensor(self.alloc(max(nbytes, 1)), shape, dtype)

    def read(self, tensor: Any) -> bytes:
        """The bytes of a contiguous tensor."""
        return self.bytes_at(tensor.data_ptr(), tensor.nbytes)

    def write(self, tensor: Any, data: bytes) -> None:
        assert len(data) == tensor.nbytes
        self._write(tensor.data_ptr(), data)


class Foreign:
    """An array of another library: it has DLPack or the array interface, and nothing else."""

    def __init__(self, double: GpuDouble, address: int, shape: Sequence[int], dtype: str) -> None:
        self.double, self.address = double, address
        self.shape, self.dtype = tuple(shape), dtype
        self.asked: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return _KINDS[self.double.platform], 0

    def __dlpack__(self, *, stream: Any = None, **more: Any) -> Any:
        self.asked.append(stream)
        return self.double.capsule(self.address, self.shape, self.dtype)


class Interfaced:
    """An array with `__cuda_array_interface__` only."""

    def __init__(self, **interface: Any) -> None:
        self._interface = {"version": 3, "strides": None, **interface}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._interface
