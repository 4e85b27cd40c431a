"""Looking at a peer's memory instead of copying it: mapped, and not used again by its owner.

May import core, ffi, memory and errors. A mapping lives as long as its last array: its
native half is released where that dies, which frees nothing that anybody else could still use.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NoReturn

from transport.errors import DeadlineExceeded, InvalidUse, Status, Unavailable
from transport.ffi import check, ffi, handle, lib
from transport.ffi.handle import unpicklable
from transport.memory.layout import span
from transport.types import Closing, check_timeout, format_bytes

if TYPE_CHECKING:
    from transport.control.records import PeerRecord
    from transport.engine.core import Core
    from transport.memory.remote import RemoteRegion

_SLICE = 0.05  # seconds between looks whether the engine is being closed


class _Pages:
    """A `struct tn_map *`, which the arrays hold."""

    __slots__ = ("_pid", "pointer")

    def __init__(self) -> None:
        self._pid = handle.here
        self.pointer = ffi.new("struct tn_map **")  # filled in by C, so that Ctrl-C loses nothing

    def buffer(self, address: Any, nbytes: int) -> Any:
        """A buffer over the memory that keeps this alive."""
        held = [self]
        return ffi.buffer(ffi.gc(ffi.cast("char *", address), lambda _: held.clear()), nbytes)

    def __del__(self) -> None:
        # In a forked child it is the parent that tells the owner when it is done.
        if self.pointer[0] and self._pid == handle.here:
            lib.tn_map_close(self.pointer[0])


class Mapping(Closing):
    """A part of a peer's memory, mapped here. Made by `Engine.map`; a context manager.

    `numpy()` is a read-only array of the very bytes: what the owner writes is seen. `torch()` is a
    tensor that may be written to: the pages that are become this process's own copies. The owner
    does not use the memory again before the mapping is closed (or dropped) and its arrays have
    died, or this process has.
    """

    __slots__ = ("_low", "_nbytes", "_pages", "_remote")

    def __init__(self, pages: _Pages, remote: RemoteRegion) -> None:
        low, high = _extent(remote)
        self._pages: _Pages | None = pages
        self._remote = remote
        self._low = low
        self._nbytes = high - low

    @property
    def shape(self) -> tuple[int, ...]:
        return self._remote.shape

    @property
    def dtype(self) -> str | None:
        """ "float32", "bfloat16" and so on; None for plain bytes."""
        return self._remote.dtype

    @property
    def closed(self) -> bool:
        return self._pages is None

    @property
    def stale(self) -> bool:
        """True once the owner has closed the region, or has ended.

        The memory stays valid. It holds what was last there, or what the owner's own tensors have
        put there since.
        """
        return bool(lib.tn_map_stale(self._open().pointer[0]))

    def numpy(self) -> Any:
        """A read-only numpy array. Raises InvalidUse where numpy lacks the dtype."""
        import numpy

        pages, remote = self._open(), self._remote
        try:
            dtype = numpy.dtype(remote.dtype or "uint8")
        except TypeError:
            raise InvalidUse(f"numpy has no dtype {remote.dtype}; use .torch()") from None
        if not self._nbytes:
            empty = numpy.empty(remote.shape, dtype)
            empty.flags.writeable = False
            return empty
        memory = pages.buffer(lib.tn_map_shared(pages.pointer[0]), self._nbytes)
        # numpy.ndarray looks through a memoryview at what is behind it, which could be written to.
        flat = numpy.frombuffer(memoryview(memory).toreadonly(), numpy.uint8)
        return numpy.ndarray(remote.shape, dtype, flat.data, -self._low, remote.strides)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """For `numpy.asarray(mapping)`: without it numpy would wrap the object itself."""
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"elements of {array.dtype} become {dtype} by a copy only")
            return array.astype(dtype)
        return array.copy() if copy else array

    def torch(self) -> Any:
        """A torch tensor over private pages: in-place operations change it here, not at the owner.

        All tensors of one mapping are over the same pages. Raises InvalidUse for negative strides,
        which torch has not. Imports torch.
        """
        import torch

        pages, remote = self._open(), self._remote
        dtype = getattr(torch, remote.dtype or "uint8")
        if not self._nbytes:
            return torch.empty(remote.shape, dtype=dtype)
        steps = _steps(remote)
        address = lib.tn_map_copy(pages.pointer[0])
        if not address:
            raise Unavailable("there is no memory (or huge pages) for private copies; use .numpy()")
        if int(ffi.cast("uintptr_t", address)) % remote.itemsize:
            raise InvalidUse(f"the memory is not aligned for elements of {remote.dtype}")
        memory = torch.frombuffer(pages.buffer(address, self._nbytes), dtype=torch.uint8)
        made = torch.empty(0, dtype=dtype, device="cpu")
        return made.set_(memory.untyped_storage(), 0, remote.shape, steps)

    def close(self) -> None:
        """Lets the memory go, once the last array of it has died. Idempotent."""
        self._pages = None

    def _open(self) -> _Pages:
        pages = self._pages
        if pages is None:
            raise InvalidUse("this mapping is closed")
        return pages

    def __reduce__(self) -> NoReturn:
        raise unpicklable("mapping", "send the remote region")

    def __repr__(self) -> str:
        state = "closed" if self.closed else "stale" if self.stale else "live"
        what = f"{self.dtype}{list(self.shape)}" if self.dtype else "bytes"
        return f"<Mapping {what} {format_bytes(self._remote.nbytes)} {state}>"


def map_remote(
    core: Core, record: PeerRecord, remote: RemoteRegion, timeout: float | None
) -> Mapping:
    """See `Engine.map`. The peer is connected."""
    limit = check_timeout(timeout)
    limit = core.settings.connect_timeout if limit is None else limit
    pages, end = _Pages(), time.monotonic() + limit
    low, high = _extent(remote)
    with core:
        pointer, native = record.native.pointer, ffi.from_buffer("struct tn_remote[]", _c(remote))
        offset = remote._offset + low if high > low else 0
        begun = lib.tn_map_begin(pointer, native, offset, high - low, pages.pointer)
        check(begun, peer=record.name, op="map")
    try:
        status = int(Status.PENDING)
        while status == Status.PENDING:
            with core:
                status = lib.tn_map_wait(pages.pointer[0], int(_SLICE * 1e9))
                check(status, peer=record.name, op="map")
            if status == Status.PENDING and time.monotonic() > end:
                words = f"peer {record.name} has not given its memory within {limit:g} s"
                raise DeadlineExceeded(words)
    except BaseException:
        _give_up(core, pages)
        raise
    return Mapping(pages, remote)


def _give_up(core: Core, pages: _Pages) -> None:
    """While the engine is there, which one that is under way needs."""
    with core:
        pointer, pages.pointer[0] = pages.pointer[0], ffi.NULL
        lib.tn_map_close(pointer)


def _c(remote: RemoteRegion) -> bytes:
    return remote._owner.native


def _extent(remote: RemoteRegion) -> tuple[int, int]:
    """Where its elements begin and end, in bytes from the first one."""
    return span(remote.shape, remote.strides, remote.itemsize)


def _steps(remote: RemoteRegion) -> tuple[int, ...]:
    """Strides as torch counts them, in elements."""
    size = remote.itemsize
    if any(step < 0 or step % size for step in remote.strides):
        raise InvalidUse(f"torch has no strides of {remote.strides} bytes; use .numpy()")
    return tuple(step // size for step in remote.strides)
