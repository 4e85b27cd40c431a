"""Regions: memory that peers may use by handle, and how the right is taken back.

May import ffi, types and errors. A table of the engine's native regions finds the one under a local
address (RDMA needs it), and keeps what cannot be given back yet until it is quiet.
"""

from __future__ import annotations

import errno
import logging
import threading
from bisect import bisect_right
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from transport.errors import InvalidUse, NativeError, Status
from transport.ffi import failure, ffi, lib, text
from transport.ffi.handle import Handle
from transport.memory.backing import GPU, POOL, Backing, backing_of
from transport.memory.gpu import extent_of
from transport.memory.host import View, identity_of, span_of, view
from transport.memory.layout import span
from transport.memory.registering import Making, Manner
from transport.memory.remote import NATIVE, Owner, RemoteRegion
from transport.types import Access, check_timeout, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transport.ffi.gate import Gate
    from transport.memory.gpu import Extent
    from transport.memory.pool import Pool
    from transport.memory.registering import Progress

_EXPLAINED = 16384  # bytes of text

_log = logging.getLogger("transport.memory")


class NativeRegion:
    """A `struct tn_region *` and the bytes it covers.

    The struct is freed only after this object has died: whoever found it may hand its address to C.
    """

    __slots__ = (
        "allocation",
        "end",
        "identity",
        "keep",
        "number",
        "pointer",
        "quiet",
        "start",
        "table",
        "temporary",
    )

    def __init__(
        self, table: RegionTable, pointer: Any, start: int, length: int, keep: Any
    ) -> None:
        self.table = table
        self.pointer = pointer
        self.number = int(ffi.cast("uintptr_t", pointer))  # for packed ranges
        self.start = start
        self.end = start + length
        self.keep = keep  # what keeps the memory alive
        self.identity = 0  # id of the storage object, which `keep` keeps alive
        self.allocation = 0  # of a GPU's memory: what tells its allocations from any others
        self.quiet = False  # closed, and nobody can touch the memory
        self.temporary = False  # to be closed when nobody uses it any more

    def __lt__(self, other: NativeRegion) -> bool:
        return self.start < other.start

    def __del__(self) -> None:
        if self.quiet or self.temporary:
            self.table.retire(self.pointer, self.quiet)


class RegionTable:
    """The native regions of one engine. Thread-safe."""

    def __init__(self, engine: Any, pool: Pool, gate: Gate) -> None:
        self.gate = gate
        self.close_timeout = 5.0
        self.manner = Manner()
        self.reclaim: Callable[[], bool] = lambda: False  # frees locked memory that nobody uses
        self.nearest: Callable[[int, int], int] | None = None  # rails for memory: start, length
        self.nearest_gpu: Callable[[int], int] = lambda _: 0  # rails for a GPU's, by its ordinal
        self._engine = engine  # struct tn_engine *
        self._pool = pool
        self._lock = threading.Lock()
        self._live: dict[NativeRegion, None] = {}  # those that `find` may find
        self._sorted: list[NativeRegion] | None = []  # the same by address, made when it is needed
        self._dropped: deque[NativeRegion] = deque()  # by finalizers
        self._retired: deque[tuple[Any, bool]] = deque()  # by finalizers: pointer, whether closed
        self._quarantine: list[NativeRegion] = []  # closed, but a peer may still touch them

    def backing(self, view: View) -> Backing:
        """What lies behind the span of a view's elements."""
        if view.device is not None:
            return GPU
        start, length = span_of(view)
        return POOL if self._pool.find(start) else backing_of(start, length)

    def open(
        self, view: View, access: Access, backing: Backing, progress: Progress | None = None
    ) -> NativeRegion:
        """Registers the span of a view's elements, for peers. Raises NativeError."""
        file, where = backing.kind == "file", span_of(view)
        readonly, keep = view.readonly or not backing.writable, view.owner
        gpu = None if view.device is None else extent_of(view, *where)
        region = self.open_bytes(where, access, keep, readonly, progress, file=file, gpu=gpu)
        region.identity = identity_of(view)
        region.allocation = 0 if gpu is None else gpu.identity
        with self._lock:
            self._live[region] = None
            self._sorted = None
        return region

    def open_bytes(
        self,
        extent: tuple[int, int],
        access: Access,
        keep: Any,
        readonly: bool = False,
        progress: Progress | None = None,
        *,
        file: bool = False,
        gpu: Extent | None = None,
    ) -> NativeRegion:
        """Registers bytes that `find` shall not find: their owner keeps the region himself.

        `file` and `gpu` tell what kind of memory it is.
        """
        start, length = extent
        segment = self._pool.find(start) if length and gpu is None else ffi.NULL
        where = start, length, access.value, segment
        # Without NICs a file's pages come as they are read, which may be few of them.
        manner = replace(self.manner, prefault=0) if file and not self.nearest else self.manner
        kind = lib.TN_MEMORY_FILE if file else lib.TN_MEMORY_DEVICE if gpu else lib.TN_MEMORY_HOST
        making = Making(self._engine, self.gate, manner, where, progress, int(kind))
        try:
            pointer = making.run(readonly)
        except NativeError as error:
            if error.errno != errno.ENOMEM or not self.reclaim():
                raise
            pointer = making.run(readonly)
        region = NativeRegion(self, pointer, start, length, keep)
        if gpu is not None:
            lib.tn_region_prefer_rails(pointer, self.nearest_gpu(gpu.device))
        elif self.nearest is not None:
            lib.tn_region_prefer_rails(pointer, self.nearest(start, length))
        if lib.tn_region_missing(pointer):
            _log.warning("a region is not registered with every rail: %s", explain(region))
        return region

    def close(self, region: NativeRegion, timeout: float) -> bool:
        """Revokes it everywhere. False: something may still touch the memory: it stays pinned."""
        with self._lock:
            if region in self._live:
                del self._live[region]
                self._sorted = None
        status = lib.tn_region_close(region.pointer, int(max(timeout, 0.0) * 1e9))
        if status == Status.OK:
            self._settle(region)
            return True
        _log.warning("%s", failure(status))
        with self._lock:
            self._quarantine.append(region)
        return False

    def drop(self, region: NativeRegion) -> None:
        """For finalizers: the next `drain` closes it."""
        self._dropped.append(region)

    def retire(self, pointer: Any, closed: bool) -> None:
        """For finalizers: the next `drain` frees the struct."""
        self._retired.append((pointer, closed))

    @property
    def has_chores(self) -> bool:
        return bool(self._dropped or self._retired or self._quarantine)

    def drain(self) -> None:
        """Closes what finalizers dropped and frees what has become quiet."""
        for region in _take_all(self._dropped):
            self.close(region, self.close_timeout)
        if self._quarantine:
            with self._lock:
                waiting, self._quarantine = self._quarantine, []
            self._quarantine += [region for region in waiting if not self._try_settle(region)]
        for pointer, closed in _take_all(self._retired):
            if closed or lib.tn_region_close(pointer, 0) == Status.OK:
                lib.tn_region_release(pointer)

    def _try_settle(self, region: NativeRegion) -> bool:
        quiet = bool(lib.tn_region_quiet(region.pointer))
        if quiet:
            self._settle(region)
        return quiet

    def _settle(self, region: NativeRegion) -> None:
        region.keep = None
        region.quiet = True

    def registered(self, identity: int) -> bool:
        """Whether a region that `open` made is of this storage object."""
        with self._lock:
            return any(region.identity == identity for region in self._live)

    def find(self, view: View, allocation: int = 0) -> NativeRegion | None:
        """A region that `open` made and that covers the view.

        It must be of the same storage object: a resized tensor leaves its address to others. Of a
        GPU it must be the same `allocation`, too: an address may be given to another one.
        """
        start, nbytes = span_of(view)
        end, live = start + nbytes, self._by_address()
        at = bisect_right(live, start, key=lambda region: region.start) - 1
        # Regions may overlap; a few steps back find the usual cases, and a miss costs only time.
        for region in live[max(0, at - 3) : at + 1]:
            if region.start <= start and end <= region.end:
                same = region.identity == identity_of(view) and region.allocation == allocation
                return region if same else None
        return None

    def _by_address(self) -> list[NativeRegion]:
        found = self._sorted  # replaced, never changed in place: the usual case needs no lock
        if found is None:
            with self._lock:
                found = self._sorted = sorted(self._live)
        return found

    def close_all(self, timeout: float) -> list[NativeRegion]:
        """Before the engine closes. Returns the regions whose memory must never be given back."""
        for region in list(self._live):
            self.close(region, timeout)
        self.drain()
        return self._quarantine


def explain(region: NativeRegion) -> list[str]:
    """One line per rail: how it has registered the region, or why not."""
    out = ffi.new("char[]", _EXPLAINED)
    lib.tn_region_explain(region.pointer, out, _EXPLAINED)
    return text(out).splitlines()


def _describe(region: NativeRegion) -> tuple[bytes, bytes]:
    """The C half of a handle and its key table."""
    described = ffi.new("struct tn_remote *")
    lib.tn_region_describe(region.pointer, described)
    count = lib.tn_region_keys(region.pointer, ffi.NULL, 0)
    keys = ffi.new("uint32_t[]", count)
    lib.tn_region_keys(region.pointer, keys, count)
    return bytes(ffi.buffer(described)), bytes(ffi.buffer(keys))


T = TypeVar("T")


def _take_all(queue: deque[T]) -> Iterator[T]:
    """What is in the queue; others may add and take meanwhile."""
    while queue:
        try:
            yield queue.popleft()
        except IndexError:
            return


class Region(Handle):
    """Memory that you registered. It keeps the tensor alive until it is closed and quiet.

    Made by `Engine.register`. A strided tensor's region covers all bytes between its first and its
    last element. Keep it as long as peers shall use the memory: one that is dropped is closed by
    the next call of its engine, and its handles raise StaleRegion.
    """

    _instead = "send region.remote()"
    _loss = "; its handles become stale: keep the region while peers use them"

    def __init__(
        self,
        parent: object,
        table: RegionTable,
        identity: Callable[[], tuple[bytes, tuple[str, ...]]],
        view: View,
        access: Access,
        backing: Backing,
        progress: Progress | None = None,
    ) -> None:
        self._parent = parent  # the engine must outlive its regions
        self._table = table
        self._identity = identity
        self._access = access
        self._backing = backing
        self._nbytes = view.nbytes
        self._shape = tuple(view.shape)
        self._dtype = view.dtype
        self._strides = None if view.contiguous else view.strides
        self._view: View | None = view
        self._remote: RemoteRegion | None = None
        self._native = table.open(view, access, backing, progress)
        self._open()

    @property
    def nbytes(self) -> int:
        """Size of the elements, without gaps between them."""
        return self._nbytes

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> str | None:
        """ "float32", "bfloat16" and so on; None for plain bytes."""
        return self._dtype

    @property
    def access(self) -> Access:
        """What peers may do."""
        return self._access

    @property
    def backing(self) -> Backing:
        """What lies behind the memory: the pool, a file that may end, a GPU, or neither."""
        return self._backing

    @property
    def quiet(self) -> bool:
        """True once the region is closed and no peer can touch its memory."""
        return self._closed and self._native.quiet

    @property
    def number(self) -> int:
        """What names the region in messages ("region 7 was closed"); used again later."""
        number: int = NATIVE.unpack_from(self.remote()._owner.native)[0]
        return number

    def remote(self, part: Any = None) -> RemoteRegion:
        """The right to use this region, to be sent to whoever shall have it. Made once.

        With `part`, a tensor or array within the same memory, a handle of its dtype, shape and
        strides; InvalidUse where it is of another memory. The right is the whole region's.
        """
        self._check()
        return self._whole() if part is None else self._part(view(part))

    def _whole(self) -> RemoteRegion:
        if self._remote is None:
            with self._table.gate:
                native, keys = _describe(self._native)
            incarnation, addresses = self._identity()
            owner = Owner.make(incarnation, addresses, native, keys)
            offset = self._offset()
            self._remote = RemoteRegion(owner, offset, self._dtype, self._shape, self._strides)
        return self._remote

    def _part(self, found: View) -> RemoteRegion:
        low, high = span(found.shape, found.strides, found.itemsize)
        start = found.address + low - self._native.start
        inside = start >= 0 and start + high - low <= self._native.end - self._native.start
        if found.nbytes and not (inside and identity_of(found) == self._native.identity):
            raise InvalidUse("the tensor is not in the memory of this region: register it")
        strides = None if found.contiguous else found.strides
        offset = start - low if found.nbytes else 0
        return RemoteRegion(self._whole()._owner, offset, found.dtype, found.shape, strides)

    def explain(self) -> list[str]:
        """How each RDMA rail has registered the memory, or why not: a line per rail.

        Of a GPU's memory that no rail has the last line tells what that means.
        """
        self._check()
        with self._table.gate:
            lines = explain(self._native)
            if self._backing is GPU and lib.tn_region_missing(self._native.pointer) == len(lines):
                lines.append(
                    "staged: peers that no other way reaches it from get it through host memory"
                )
            return lines

    def close(self, timeout: float | None = None) -> None:
        """Takes the right back everywhere at once, then waits until nobody touches the memory.

        Waits at most `timeout` seconds (default: the setting close_timeout); a peer that still
        holds the memory is then disconnected. If even that does not help, the memory stays pinned
        until `quiet`, which a warning in the log says. Idempotent.
        """
        limit = check_timeout(timeout)  # before anything is marked as done
        closed, self._closed = self._closed, True
        if closed or self._foreign():
            return
        self._view = None
        table = self._table
        if table.gate.closed:  # the engine has closed all of its regions
            return
        with table.gate:
            table.close(self._native, table.close_timeout if limit is None else limit)

    def local_view(self) -> View:
        """The view of the memory, for transfers that use the region as their local side."""
        self._check()
        if self._view is None:
            raise InvalidUse("this region is closed")
        return self._view

    def _offset(self) -> int:
        assert self._view is not None
        return self._view.address - self._native.start

    def _hand_over(self) -> None:
        self._table.drop(self._native)

    def _ended(self) -> bool:
        return self._table.gate.closed

    def _describe(self) -> str:
        what = f"{self._dtype}{list(self._shape)}" if self._dtype else "bytes"
        return f"{what} {format_bytes(self._nbytes)} {self._access}"
