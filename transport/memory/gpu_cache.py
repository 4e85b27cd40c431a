"""Registrations of local GPU memory that nobody registered: one per allocation of the driver.

May import ffi and errors. Allocators cut tensors out of few large allocations, and registering one
is expensive: it is registered whole, and all tensors in it share that. Since an allocation may be
freed and another one be given the same address, the driver is asked at every use which one it is.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from transport.errors import TransportError
from transport.memory.gpu import extent_at, extent_of, segments_ended
from transport.memory.host import View, span_of, storage_of
from transport.types import NOBODY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transport.memory.gpu import Extent
    from transport.memory.region import NativeRegion, RegionTable


class _Entry:
    """`users` are the storages that have used it, by id: with the last one it goes."""

    __slots__ = ("extent", "region", "users")

    def __init__(self, extent: Extent, region: NativeRegion) -> None:
        self.extent = extent
        self.region: NativeRegion | None = region  # None: reclaimed
        self.users: dict[int, weakref.ref[Any]] = {}


class GpuCache:
    """The implicit local regions of one engine in GPU memory. Thread-safe."""

    def __init__(self, table: RegionTable) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._entries: dict[tuple[int, int], _Entry] = {}  # by start and size
        self._dead: deque[tuple[_Entry, int]] = deque()  # storages, by id
        self._ended = segments_ended()
        self.hits = 0
        self.misses = 0

    def register(self, view: View, pins: list[Any]) -> int:
        """As `LocalCache.register`, of memory of a GPU."""
        start, nbytes = span_of(view)
        extent = extent_of(view, start, nbytes)
        region = self._table.find(view, extent.identity) or self._known(view, extent)
        if region is None:
            region = self._register(view, extent)
        pins.append(region)
        return region.number

    @property
    def has_chores(self) -> bool:
        return bool(self._dead) or (bool(self._entries) and segments_ended() != self._ended)

    def drain(self) -> None:
        """Closes what no storage uses any more, and what lies in segments that are gone."""
        with self._lock:
            gone = [entry for entry in self._take_unused() if not entry.extent.pooled]
            ended, self._ended = self._ended, segments_ended()
            if ended != self._ended:
                gone += [entry for entry in self._entries.values() if _is_stale(entry.extent)]
            for entry in gone:
                self._forget(entry)
        self._let_go(gone)

    def reclaim(self) -> bool:
        """As `LocalCache.reclaim`; also before the engine closes."""
        with self._lock:
            entries = list(self._entries.values())
            self._entries.clear()
        return self._let_go(entries)

    @property
    def entries(self) -> int:
        """How many allocations (or runs of them) are registered now."""
        return len(self._entries)

    def _known(self, view: View, extent: Extent) -> NativeRegion | None:
        with self._lock:
            entry = self._entries.get((extent.start, extent.nbytes))
            if entry is None or entry.extent != extent or not extent.identity:
                return None
            self.hits += 1
            self._use(entry, view)
            return entry.region

    def _register(self, view: View, extent: Extent) -> NativeRegion:
        self.misses += 1
        where = extent.start, extent.nbytes
        region = self._table.open_bytes(where, NOBODY, None, view.readonly, gpu=extent)
        if not extent.identity or (not extent.pooled and storage_of(view) is None):
            region.temporary = True  # nothing tells when it is another's: closed after its use
            return region
        entry = _Entry(extent, region)
        with self._lock:
            self._use(entry, view)
            before = self._entries.get(where)
            self._entries[where] = entry
        if before is not None:  # of an allocation that was freed, or another thread was as quick
            self._let_go([before])
        return region

    def _use(self, entry: _Entry, view: View) -> None:
        """Called with the lock held."""
        storage = None if entry.extent.pooled else storage_of(view)
        if storage is None:
            return
        user = id(storage)
        known = entry.users.get(user)
        if known is None or known() is not storage:
            entry.users[user] = weakref.ref(storage, lambda _: self._dead.append((entry, user)))

    def _take_unused(self) -> Iterator[_Entry]:
        """Called with the lock held."""
        while self._dead:
            entry, user = self._dead.popleft()
            known = entry.users.get(user)
            if known is not None and known() is None:  # else it is another storage's id by now
                del entry.users[user]
                if not entry.users:
                    yield entry

    def _forget(self, entry: _Entry) -> None:
        """Called with the lock held."""
        key = entry.extent.start, entry.extent.nbytes
        if self._entries.get(key) is entry:
            del self._entries[key]

    def _let_go(self, entries: list[_Entry]) -> bool:
        """Closes them once no transfer uses them."""
        for entry in entries:
            region, entry.region = entry.region, None
            if region is not None:
                region.temporary = True
        region = None
        self._table.drain()
        return bool(entries)


def _is_stale(extent: Extent) -> bool:
    if not extent.pooled:
        return False
    try:
        return extent_at(extent.start, extent.nbytes) != extent
    except TransportError:  # it is not all there any more
        return True
