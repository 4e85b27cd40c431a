"""GPU memory of an engine's own, which peers can have by a descriptor and NICs where they can.

May import ffi, allocator, device and errors. Grows by segments and never moves what is there. A
block comes back when its last tensor dies, on whatever thread; regions and transfers keep their
memory's owner alive until they are quiet, so a block that comes back is quiet. As with torch's own
allocator, work on streams other than the current one must be over by then.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from transport.ffi import check, ffi, lib
from transport.memory.allocator import Allocator

if TYPE_CHECKING:
    from transport.memory.device import Device

SEGMENT_BYTES = 64 << 20
"""Of an ordinary segment; larger blocks get their own."""

GRAIN = 512
"""Blocks begin at multiples of this, as those of GPU allocators do."""

_REAPED = 256  # blocks that one call takes


class Block:
    """Some bytes of a GPU's memory, for as long as this object or a tensor over it lives."""

    __slots__ = ("__weakref__", "address", "device", "nbytes", "offset", "pointer")

    def __init__(self, segment: _Segment, offset: int, nbytes: int) -> None:
        out = ffi.new("struct tn_device_block **")
        check(lib.tn_device_block_open(segment.pointer, offset, out))
        self.pointer = ffi.gc(out[0], lib.tn_device_block_release)
        self.address = segment.base + offset
        self.offset = offset
        self.nbytes = nbytes
        self.device = segment.device


class _Segment:
    __slots__ = ("allocator", "base", "device", "pointer")

    def __init__(self, device: Device, nbytes: int) -> None:
        out = ffi.new("struct tn_device_segment **")
        check(lib.tn_device_segment_open(device.ordinal, nbytes, out))
        self.pointer = out[0]
        self.base = int(lib.tn_device_segment_address(self.pointer))
        self.device = device
        self.allocator = Allocator(int(lib.tn_device_segment_bytes(self.pointer)))


class GpuPool:
    """The segments of one engine. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._segments: list[_Segment] = []
        self._ended = 0  # blocks of the whole process that are known to have ended
        self._offsets: Any = ffi.new("uint64_t[]", _REAPED)

    def take(self, nbytes: int, device: Device) -> Block:
        """At least `nbytes` bytes, uninitialised. Raises NativeError where memory is short."""
        size = max(-(-nbytes // GRAIN) * GRAIN, GRAIN)
        with self._lock:
            self._reap()
            for segment in self._segments:
                if segment.device == device:
                    start = segment.allocator.take(size)
                    if start is not None:
                        return self._block(segment, start, nbytes)
            segment = _Segment(device, max(size, SEGMENT_BYTES))
            self._segments.append(segment)
            start = segment.allocator.take(size)
            assert start is not None
            return self._block(segment, start, nbytes)

    @property
    def has_chores(self) -> bool:
        return bool(self._segments) and lib.tn_device_blocks_ended() != self._ended

    def drain(self) -> None:
        """Takes back blocks that have ended, and gives whole segments back to the driver."""
        with self._lock:
            self._reap()

    @property
    def segments(self) -> int:
        """How many segments there are."""
        return len(self._segments)

    @property
    def used_bytes(self) -> int:
        """Bytes of the blocks that are handed out."""
        self.drain()
        return sum(s.allocator.size - s.allocator.free_bytes for s in self._segments)

    def close(self) -> None:
        """Segments with living blocks stay until those end; C sees to it."""
        with self._lock:
            segments, self._segments = self._segments, []
        for segment in segments:
            lib.tn_device_segment_close(segment.pointer)

    def _block(self, segment: _Segment, start: int, nbytes: int) -> Block:
        try:
            return Block(segment, start, nbytes)
        except BaseException:
            segment.allocator.give_back(start)
            raise

    def _reap(self) -> None:
        self._ended = int(lib.tn_device_blocks_ended())
        for segment in self._segments:
            count = _REAPED
            while count == _REAPED:
                count = lib.tn_device_segment_reap(segment.pointer, self._offsets, _REAPED)
                for i in range(count):
                    segment.allocator.give_back(self._offsets[i])
        self._give_back_unused()

    def _give_back_unused(self) -> None:
        """One empty ordinary segment for each GPU is kept for what comes next."""
        kept: set[Device] = set()
        for segment in [s for s in self._segments if not s.allocator.used]:
            if segment.device not in kept and segment.allocator.size <= SEGMENT_BYTES:
                kept.add(segment.device)
                continue
            self._segments.remove(segment)
            lib.tn_device_segment_close(segment.pointer)
