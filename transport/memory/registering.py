"""Making a native region: small ones in one call, large ones in steps, told of and interruptible.

May import ffi, errors and types. C does the work, on several threads and without Python's lock; in
between this module tells how far it is, and Ctrl-C or a closing engine ends it there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transport.errors import InvalidUse, Status
from transport.ffi import check, ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.ffi.gate import Gate

    # Called with the bytes that are done and all.
    Progress = Callable[[int, int], object]

_OUT = ffi.typeof("struct tn_region **")
_MOST_THREADS = 16  # beyond that the kernel's own locks are the limit


@dataclass(frozen=True, slots=True)
class Manner:
    """How memory is registered; the settings of the same names."""

    threads: int = 0  # 0: as many as there are CPUs for this process
    prefault: int = 0  # regions of at least so many bytes have their pages faulted in; 0: none
    step: int = 1 << 30  # bytes between looks at what else there is to do

    def workers(self) -> int:
        return self.threads or min(len(os.sched_getaffinity(0)), _MOST_THREADS)


class Making:
    """One region on its way. `where` is address, length, access bits and segment; `memory` is its
    kind (enum tn_memory_kind).
    """

    def __init__(
        self,
        engine: Any,
        gate: Gate,
        manner: Manner,
        where: tuple[int, int, int, Any],
        progress: Progress | None,
        memory: int,
    ) -> None:
        self._engine = engine  # struct tn_engine *
        self._gate = gate
        self._manner = manner
        self._address, self._length, self._access, self._segment = where
        self._progress = progress
        self._memory = memory

    def run(self, readonly: bool) -> Any:
        """The `struct tn_region *`. Raises NativeError, or what `progress` raises."""
        prefault = self._manner.prefault
        populates = bool(prefault) and self._memory != lib.TN_MEMORY_DEVICE
        large = populates and self._length >= prefault
        if not large and self._progress is None and self._memory == lib.TN_MEMORY_HOST:
            return self._at_once()
        out = ffi.new(_OUT)
        try:
            if large:
                self._populate(readonly)
            self._register(out, 2 if large else 1)
        except BaseException:
            if out[0]:
                lib.tn_region_close(out[0], 0)
                lib.tn_region_release(out[0])
            raise
        return out[0]

    def _at_once(self) -> Any:
        out = ffi.new(_OUT)
        address = ffi.cast("void *", self._address)
        check(
            lib.tn_region_open(
                self._engine, address, self._length, self._access, self._segment, out
            )
        )
        return out[0]

    def _populate(self, readonly: bool) -> None:
        """Faults the pages in, which is half of the way. What cannot be is left to registering,
        which will say why.
        """
        threads, step = self._manner.workers(), self._manner.step
        for done in range(0, self._length, step):
            self._tell(done // 2)
            size = min(step, self._length - done)
            address = ffi.cast("void *", self._address + done)
            if lib.tn_memory_populate(address, size, not readonly, threads) < 0:
                return

    def _register(self, out: Any, halves: int) -> None:
        options = ffi.new("struct tn_region_options *")
        options.address = ffi.cast("void *", self._address)
        options.length = self._length
        options.segment = self._segment
        options.access = self._access
        options.memory = self._memory
        options.in_steps = 1
        options.dmabuf_fd = -1
        done = ffi.new("uint64_t *")
        check(lib.tn_region_open_with(self._engine, options, out))
        status = int(Status.PENDING)
        while status == Status.PENDING:
            self._tell(self._length - (self._length - done[0]) // halves)
            status = check(lib.tn_region_advance(out[0], done))
        self._tell(self._length)

    def _tell(self, done: int) -> None:
        if self._gate.closed:
            raise InvalidUse("this engine is closed")
        if self._progress is not None:
            self._progress(done, self._length)
