"""Registered words of eight bytes, for the answers of atomic operations.

May import ffi and types. RDMA writes an answer only into registered memory, and registering costs
more than the operation: words come in pages of the engine's own.
"""

from __future__ import annotations

import mmap
import sys
from collections import deque
from typing import TYPE_CHECKING

from transport.ffi import ffi
from transport.types import NOBODY

if TYPE_CHECKING:
    from transport.memory.region import NativeRegion, RegionTable

_WORD = 8
_BYTES = ffi.typeof("char[]")


class Words:
    """Registered words for answers. They come in pages, which stay until the engine closes."""

    def __init__(self, table: RegionTable) -> None:
        self.registered = False  # set where RDMA is used
        self._table = table
        self._pages: list[_Page] = []
        self._free: deque[tuple[_Page, int]] = deque()

    def take(self) -> Word:
        """A word, which comes back when nobody holds it any more."""
        while True:
            try:
                page, offset = self._free.popleft()
            except IndexError:
                page = _Page(self._table if self.registered else None)
                self._pages.append(page)
                self._free.extend((page, at) for at in range(0, mmap.PAGESIZE, _WORD))
                continue
            return Word(self._free, page, offset)

    def close(self) -> None:
        """Before the engine closes."""
        for page in self._pages:
            if page.region is not None:
                self._table.close(page.region, 0.0)


class _Page:
    __slots__ = ("address", "bytes", "keep", "region")

    def __init__(self, table: RegionTable | None) -> None:
        self.bytes = mmap.mmap(-1, mmap.PAGESIZE)
        keep = ffi.from_buffer(_BYTES, self.bytes)
        self.address = int(ffi.cast("uintptr_t", keep))
        self.keep = keep
        self.region: NativeRegion | None = None
        if table is not None:
            self.region = table.open_bytes((self.address, mmap.PAGESIZE), NOBODY, keep)


class Word:
    """Eight bytes at `address`, in the native region of the number `region` (0: none)."""

    __slots__ = ("_free", "_offset", "_page", "address", "region")

    def __init__(self, free: deque[tuple[_Page, int]], page: _Page, offset: int) -> None:
        self._free = free
        self._page = page
        self._offset = offset
        self.address = page.address + offset
        self.region = 0 if page.region is None else page.region.number

    def read(self, *, signed: bool) -> int:
        """What it holds, in this machine's byte order."""
        raw = self._page.bytes[self._offset : self._offset + _WORD]
        return int.from_bytes(raw, sys.byteorder, signed=signed)

    def __del__(self) -> None:
        self._free.append((self._page, self._offset))
