"""Memory that peers on this host can map: blocks of sealed segments, the storage of tensors.

May import ffi and errors. A block comes back when the last view of its memory dies. Finalizers only
put it into a list; the engine's next call, or its control thread, gives it back. Regions and
transfers keep the memory's owner alive until they are quiet, so a block that comes back is quiet.
One that a peer maps is kept aside until it does no more.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right, insort
from collections import deque
from typing import TYPE_CHECKING, Any

from transport.errors import Status
from transport.ffi import check, ffi, handle, lib
from transport.memory.allocator import Allocator, rounded

if TYPE_CHECKING:
    from transport.types import Access

SEGMENT_BYTES = 256 << 20
"""Address space of an ordinary segment; pages come with the blocks. Larger blocks get their own."""

_LOOK = 1.0  # seconds between looks whether a peer still maps what is dead here
_HUGE = 2 << 20  # a block's own segment is a whole number of huge pages


class Segment:
    """One sealed memfd, mapped here."""

    __slots__ = ("access", "allocator", "base", "left", "pointer", "reserved", "size")

    def __init__(self, engine: Any, size: int, access: Access) -> None:
        out = ffi.new("struct tn_segment **")
        check(lib.tn_segment_open(engine, size, access.value, out))
        self.pointer = out[0]
        self.base = int(ffi.cast("uintptr_t", lib.tn_segment_address(self.pointer)))
        self.size = size
        self.access = access
        self.allocator = Allocator(size)
        self.reserved = 0  # up to here all pages are there, and stay while it is open
        self.left = False  # peers map it, and go on to when it is closed here

    def __lt__(self, other: Segment) -> bool:
        return self.base < other.base

    def reserve(self, start: int, size: int) -> int:
        """A status. Asking the kernel for pages that are there costs 40 us for each MiB."""
        if start + size <= self.reserved:
            return int(Status.OK)
        status: int = lib.tn_segment_reserve(self.pointer, start, size)
        if status >= 0 and start <= self.reserved:
            self.reserved = max(self.reserved, start + size)
        return status

    def held(self, engine: Any, start: int, size: int) -> bool:
        """Whether a peer that lives maps some of these bytes."""
        return bool(lib.tn_segment_held(engine, self.pointer, start, size))

    def close(self) -> None:
        if self.left:
            lib.tn_segment_leave(self.pointer)
        else:
            lib.tn_segment_close(self.pointer)


class Pool:
    """The segments of one engine. Thread-safe."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine  # struct tn_engine *
        self._pid = handle.here
        self._lock = threading.Lock()
        self._segments: list[Segment] = []  # by address
        self._dead: deque[tuple[Segment, int]] = deque()
        self._held: list[tuple[Segment, int]] = []  # dead here, but peers map them
        self._next_look = math.inf
        self._orphaned = False

    def take(self, size: int, access: Access) -> Any:
        """`size` bytes, uninitialised, as a C pointer whose death gives them back.

        The pages are allocated here, so that a lack of memory is an error now (NativeError) and no
        SIGBUS later.
        """
        self.drain()
        with self._lock:
            if self._held:
                self._look_again()
            segment, start = self._find_room(size, access)
        status = segment.reserve(start, rounded(size))
        if status < 0:
            self._dead.append((segment, start))
        check(status)
        pointer = ffi.cast("char *", segment.base + start)
        return ffi.gc(pointer, lambda _: self._retire(segment, start), size)

    def find(self, address: int) -> Any:
        """The segment that holds this address, as a C pointer; NULL where none does."""
        segment = self._at(address)
        return ffi.NULL if segment is None else segment.pointer

    def access_at(self, address: int) -> Access | None:
        """What the memory at this address was made for; None where it is not the pool's."""
        segment = self._at(address)
        return None if segment is None else segment.access

    def _at(self, address: int) -> Segment | None:
        segments = self._segments  # replaced, never changed in place
        at = bisect_right(segments, address, key=lambda segment: segment.base) - 1
        if at >= 0 and address < segments[at].base + segments[at].size:
            return segments[at]
        return None

    @property
    def has_chores(self) -> bool:
        return bool(self._dead) or (bool(self._held) and time.monotonic() > self._next_look)

    def drain(self) -> None:
        """Gives back the blocks whose memory has died. Not for finalizers: it takes the lock."""
        if self.has_chores:
            # Nothing but `with` is safe from a Ctrl-C that comes right after the lock was taken.
            with self._lock:
                if self._held:
                    self._look_again()
                self._give_back_dead()

    @property
    def held_bytes(self) -> int:
        """Bytes of blocks that nobody here uses but that peers map: not to be used again yet."""
        with self._lock:
            self._give_back_dead()
            self._look_again()
            return sum(segment.allocator.used[start] for segment, start in self._held)

    @property
    def used_bytes(self) -> int:
        """Bytes of the blocks that are handed out."""
        return sum(s.size - s.allocator.free_bytes for s in self._segments)

    def close(self) -> None:
        """Before the native engine closes: segments with living blocks stay until those die."""
        self.drain()
        with self._lock:
            self._orphaned = True
            for segment in self._segments:
                segment.left = segment.held(self._engine, 0, segment.size)
            held, self._held = self._held, []
            for block in held:
                self._give_back(*block)
            for segment in [s for s in self._segments if not s.allocator.used]:
                self._drop(segment)

    def _retire(self, segment: Segment, start: int) -> None:
        """The finalizer of a block: may run anywhere, also in a forked child."""
        if self._pid != handle.here:
            return
        self._dead.append((segment, start))
        # No engine is left that would do it; whoever holds the lock does it, or the next one.
        while self._orphaned and self._dead and self._lock.acquire(blocking=False):
            try:
                self._give_back_dead()
            finally:
                self._lock.release()

    def _find_room(self, size: int, access: Access) -> tuple[Segment, int]:
        for segment in self._segments:
            if segment.access is access:
                start = segment.allocator.take(size)
                if start is not None:
                    return segment, start
        own = -(-rounded(size) // _HUGE) * _HUGE
        segment = Segment(self._engine, max(own, SEGMENT_BYTES), access)
        segments = self._segments.copy()
        insort(segments, segment)
        self._segments = segments
        start = segment.allocator.take(size)
        assert start is not None
        return segment, start

    def _give_back_dead(self) -> None:
        while self._dead:
            self._give_back_or_hold(*self._dead.popleft())

    def _give_back_or_hold(self, segment: Segment, start: int) -> None:
        """Regions that covered the block are closed: they would have kept it alive."""
        size = segment.allocator.used[start]
        if not self._orphaned and segment.held(self._engine, start, size):
            self._held.append((segment, start))
            self._next_look = time.monotonic() + _LOOK
        else:
            self._give_back(segment, start)

    def _look_again(self) -> None:
        held, self._held = self._held, []
        for block in held:
            self._give_back_or_hold(*block)

    def _give_back(self, segment: Segment, start: int) -> None:
        segment.allocator.give_back(start)
        if segment.allocator.used:
            return
        # One empty ordinary segment per access mode is kept with its pages for what comes next.
        spare = any(
            other is not segment and other.access is segment.access and not other.allocator.used
            for other in self._segments
        )
        if self._orphaned or spare or segment.size > SEGMENT_BYTES:
            self._drop(segment)

    def _drop(self, segment: Segment) -> None:
        self._segments = [other for other in self._segments if other is not segment]
        segment.close()
