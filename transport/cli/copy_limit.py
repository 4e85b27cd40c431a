"""What this machine can copy: the bound that every ratio refers to. May import ffi.

The very loops that transfers use, timed in C, on two ordinary buffers that were touched before and
are used again every time.
"""

from __future__ import annotations

import contextlib
import mmap
import statistics
import time
from typing import TYPE_CHECKING, Any

from transport import ffi as door
from transport.cli.bench_report import Limit
from transport.errors import NativeError, Status
from transport.types import Closing

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = {"memcpy": door.lib.TN_COPY_MEMCPY, "streaming": door.lib.TN_COPY_STREAMING}

MOST_THREADS = 256  # that tn_copy_measure starts
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
_WORTH = 0.25  # seconds per figure, within the bounds below
_FEWEST, _MOST = 7, 2000


class CopyBuffers(Closing):
    """Two touched, page-aligned buffers for copies of up to `size` bytes."""

    def __init__(self, size: int) -> None:
        try:
            self._maps = [mmap.mmap(-1, size, flags=_FLAGS) for _ in range(2)]
        except OSError as error:
            text = f"cannot get two buffers of {size} bytes: {error.strerror}"
            raise NativeError(text, operation="mmap", errno=error.errno or 0) from None
        self._views: list[Any] = [door.ffi.from_buffer("char[]", it) for it in self._maps]
        self.times(size, "memcpy", 1, 1)

    def times(self, size: int, kind: str, threads: int, count: int) -> list[int]:
        """Nanoseconds of `count` copies; empty where this processor has no such copy."""
        ns = door.ffi.new("uint64_t[]", count)
        target, source = self._views
        status = door.lib.tn_copy_measure(KINDS[kind], target, source, size, threads, count, ns)
        if status == Status.UNAVAILABLE:
            return []
        door.check(status)
        return list(ns)

    def close(self) -> None:
        self._views.clear()
        for it in self._maps:
            # The trace of an interrupted copy still holds its views: then they go with the trace.
            with contextlib.suppress(BufferError):
                it.close()


def measure_limits(size: int, all_threads: int) -> list[Limit]:
    """Both kinds at one size, with one thread and with all."""
    with CopyBuffers(size) as buffers:
        return [
            found
            for threads in sorted({1, all_threads})
            for found in _limits(buffers, size, threads)
        ]


def _limits(buffers: CopyBuffers, size: int, threads: int) -> Iterator[Limit]:
    for kind in KINDS:
        begin = time.perf_counter()
        buffers.times(size, kind, threads, _FEWEST)
        each = (time.perf_counter() - begin) / _FEWEST
        count = max(_FEWEST, min(_MOST, int(_WORTH / each)))
        times = buffers.times(size, kind, threads, count)
        if times:
            yield Limit(size, threads, kind, size / statistics.median(times))


def one_copy_each(buffers: CopyBuffers, size: int) -> dict[str, int]:
    """One copy by one thread each way, in nanoseconds by kind. For runs that take turns."""
    times = {kind: buffers.times(size, kind, 1, 1) for kind in KINDS}
    return {kind: found[0] for kind, found in times.items() if found}
