"""Registrations of local memory that nobody registered: one per storage object, found at each use.

May import ffi and errors. RDMA needs every local byte registered. A storage is registered whole at
first use, and its death retires the entry. Since a storage can be resized to another address, its
address and size are compared at every use; since an address can be given to another storage, an
entry is never found by address.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from transport.memory.host import View, extent_of, storage_of
from transport.types import NOBODY

if TYPE_CHECKING:
    from transport.memory.region import NativeRegion, RegionTable


class _Entry:
    __slots__ = ("reference", "region")

    def __init__(self, region: NativeRegion, reference: weakref.ref[Any]) -> None:
        self.region: NativeRegion | None = region  # None: reclaimed
        self.reference = reference


class LocalCache:
    """The implicit local regions of one engine. Thread-safe."""

    def __init__(self, table: RegionTable) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._entries: dict[int, _Entry] = {}  # by id of the storage object
        self._dead: deque[tuple[int, _Entry]] = deque()
        self.hits = 0
        self.misses = 0

    def register(self, view: View, pins: list[Any]) -> int:
        """The region that covers the view, as the address of its `struct tn_region`.

        `pins` is what the transfer keeps until it is quiet; the region joins it. Raises NativeError
        where memory cannot be registered.
        """
        storage = storage_of(view)
        start, size = extent_of(storage, view)
        region = self._table.find(view) or self._known(storage, start, size)
        if region is not None:
            self.hits += 1
        else:
            self.misses += 1
            region = self._table.open_bytes((start, size), NOBODY, None, view.readonly)
            if storage is None:  # nothing tells when the memory dies: it is pinned and then closed
                region.temporary = True
            else:
                self._remember(storage, region)
        pins.append(region)
        return region.number

    @property
    def has_chores(self) -> bool:
        return bool(self._dead)

    def drain(self) -> None:
        """Closes the entries whose storage has died or moved."""
        while self._dead:
            try:
                key, entry = self._dead.popleft()
            except IndexError:  # another thread took it
                return
            with self._lock:
                if self._entries.get(key) is entry:
                    del self._entries[key]
            if entry.region is not None:
                self._table.close(entry.region, 0.0)

    def close_all(self) -> None:
        """Before the engine closes."""
        self._dead.extend(self._entries.copy().items())
        self.drain()

    def reclaim(self) -> bool:
        """Forgets all entries, so that those that no transfer uses give their memory back; the
        others follow with their transfers. False: there was none.
        """
        with self._lock:
            entries = list(self._entries.values())
            self._entries.clear()
        for entry in entries:
            region, entry.region = entry.region, None
            if region is not None:
                region.temporary = True
        region = None  # now only transfers hold it
        self._table.drain()
        return bool(entries)

    @property
    def entries(self) -> int:
        """How many storages are registered now."""
        return len(self._entries)

    @property
    def bytes(self) -> int:
        """How many bytes they have."""
        regions = [entry.region for entry in self._entries.copy().values()]
        return sum(region.end - region.start for region in regions if region is not None)

    def _known(self, storage: Any, start: int, size: int) -> NativeRegion | None:
        entry = self._entries.get(id(storage))
        if entry is None or entry.reference() is not storage:
            return None
        region = entry.region
        fits = region is not None and (region.start, region.end) == (start, start + size)
        return region if fits else None

    def _remember(self, storage: Any, region: NativeRegion) -> None:
        key = id(storage)
        entry = _Entry(region, weakref.ref(storage, lambda _: self._dead.append((key, entry))))
        with self._lock:
            before = self._entries.get(key)
            self._entries[key] = entry
        if before is not None:  # its storage died or moved, or another thread was as quick
            self._dead.append((key, before))
