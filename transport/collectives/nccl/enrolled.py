"""Pool memory that a communicator knows, so that NCCL need not copy it through its own buffers.

May import ffi, errors and memory. Only segments of our own GPU memory: they are few and large, and
we know when they end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transport.errors import TransportError
from transport.ffi import ffi, lib
from transport.memory.gpu import extent_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transport.collectives.nccl.comm import Comm


class Enrolled:
    """Of one communicator; used by one thread at a time."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._handles: dict[tuple[int, int], Any] = {}  # by start and identity
        self._ended = 0
        self._counts: Any = ffi.new("uint64_t[2]")

    def add(self, parts: Iterable[Any]) -> None:
        """The segments that they lie in, where those are ours."""
        lib.tn_device_segment_count(self._counts, self._counts + 1)
        if self._counts[1] != self._ended:
            self._ended = self._counts[1]
            self.close()  # which it was nobody knows here; the rest is soon enrolled again
        if not self._counts[0]:
            return
        for part in parts:
            if part.nbytes:
                self._add(part.data_ptr(), part.nbytes)

    def _add(self, address: int, nbytes: int) -> None:
        extent = extent_at(address, nbytes)
        key = extent.start, extent.identity
        if not extent.pooled or key in self._handles:
            return
        try:
            self._handles[key] = self._comm.enroll(extent.start, extent.nbytes)
        except TransportError:
            self._handles[key] = None  # it works without; not to be tried at every call

    def close(self) -> None:
        """Before the end of a communicator that has not failed."""
        handles, self._handles = self._handles, {}
        for handle in handles.values():
            if handle is not None:
                self._comm.expel(handle)
