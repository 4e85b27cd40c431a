"""A communicator of NCCL or RCCL, as C has it, and how it begins and ends within a deadline.

May import errors, ffi and types. The libraries have calls that block for as long as they like: each
runs in a thread of its own here, and whoever waits for it waits for a bounded time.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from transport.errors import DeadlineExceeded, Status
from transport.ffi import check, failure, ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transport.collectives.nccl.translate import Op

_log = logging.getLogger("transport.collectives.nccl")

_NAP = 1e-3
ABORT_SECONDS = 0.5
"""So long an abort may take before it is left to itself."""
_FINALIZE_SECONDS = 2.0
FOREVER = (1 << 64) - 1


class Mark:
    """A place in a stream; closed by whoever has it."""

    __slots__ = ("_pointer",)

    def __init__(self, pointer: Any) -> None:
        self._pointer = pointer

    def passed(self) -> bool:
        """Raises CudaError or HipError for what ended the stream."""
        return bool(check(lib.tn_mark_passed(self._pointer)) == Status.OK)

    def wait_on(self, stream: int) -> None:
        check(lib.tn_mark_wait_on(self._pointer, stream))

    def close(self) -> None:
        lib.tn_mark_close(self._pointer)


class Comm:
    """Made by `open_comm`, `shrink` or `split`, and ended by `abort` or `close`, once."""

    def __init__(self, pointer: Any, device: int) -> None:
        self._pointer: Any = pointer
        self.device = device
        self._ended: threading.Thread | None = None
        self._lock = threading.Lock()

    def ready(self) -> bool:
        """Whether all that was asked for has begun. Raises NcclError or PeerLost: its end."""
        return bool(check(lib.tn_nccl_state(self._pointer)) == Status.OK)

    def wait_ready(self, deadline: float, what: str) -> None:
        """`deadline` by time.monotonic. Raises DeadlineExceeded, NcclError, PeerLost."""
        while not self.ready():
            if time.monotonic() >= deadline:
                raise _late(what)
            time.sleep(_NAP)

    def run(self, ops: Sequence[Op], stream: int, seconds: float) -> Mark:
        """Puts them into the stream, within that time. One thread at a time."""
        array = ffi.new("struct tn_nccl_op[]", [tuple(op) for op in ops])
        until = int(lib.tn_now()) + int(min(seconds, 1e9) * 1e9)
        out: Any = ffi.new("struct tn_mark **")
        check(lib.tn_nccl_run(self._pointer, array, len(ops), stream, until, out))
        return Mark(out[0])

    def scale(self, factor: bytes, kind: int) -> int:
        """A reduction with a factor, which is one element of that type; until `unscale`."""
        out: Any = ffi.new("int32_t *")
        check(lib.tn_nccl_scale_open(self._pointer, ffi.new("uint8_t[]", factor), kind, out))
        return int(out[0])

    def unscale(self, reduction: int) -> None:
        lib.tn_nccl_scale_close(self._pointer, reduction)

    def enroll(self, address: int, nbytes: int) -> Any:
        """Memory that will be used often; until `expel`, or the end of the communicator."""
        out: Any = ffi.new("void **")
        check(lib.tn_nccl_enroll(self._pointer, address, nbytes, out))
        return out[0]

    def expel(self, handle: Any) -> None:
        lib.tn_nccl_expel(self._pointer, handle)

    def shrink(self, left: Sequence[int], *, abort: bool, seconds: float) -> Comm:
        """Of those ranks that are not in `left`, by those alone; `abort` what is under way."""
        out: Any = ffi.new("struct tn_nccl **")
        ranks = ffi.new("int32_t[]", list(left))
        check(lib.tn_nccl_shrink(self._pointer, ranks, len(left), abort, out))
        return begun(Comm(out[0], self.device), seconds, "shrinking a communicator")

    def split(self, color: int, key: int, seconds: float) -> Comm | None:
        """By all ranks; None where the color is -1."""
        out: Any = ffi.new("struct tn_nccl **")
        check(lib.tn_nccl_split(self._pointer, color, key, out))
        self.wait_ready(time.monotonic() + seconds, "splitting a communicator")
        if not out[0]:
            return None
        return begun(Comm(out[0], self.device), seconds, "splitting a communicator")

    # ------------------------------------------------------------------------------------- the end
    def revoke(self) -> bool:
        """Ends what is under way and keeps the communicator for `shrink`; False where it cannot."""
        return lib.tn_nccl_revoke(self._pointer) == Status.OK

    def abort(self) -> bool:
        """Ends all that is under way. False: the library has not returned yet, and goes on."""
        return self._finish(lambda: lib.tn_nccl_abort(self._pointer), ABORT_SECONDS)

    def close(self) -> bool:
        """With nothing under way. What peers have not received yet gets some time."""
        return self._finish(self._end, _FINALIZE_SECONDS + ABORT_SECONDS)

    def _end(self) -> int:
        status = lib.tn_nccl_finalize(self._pointer)
        until = time.monotonic() + _FINALIZE_SECONDS
        if status == Status.PENDING:
            status = lib.tn_nccl_state(self._pointer)
        while status == Status.PENDING and time.monotonic() < until:
            time.sleep(_NAP)
            status = lib.tn_nccl_state(self._pointer)
        if status in (Status.OK, Status.UNAVAILABLE):
            return int(lib.tn_nccl_end(self._pointer))
        return int(lib.tn_nccl_abort(self._pointer))

    def _finish(self, call: Callable[[], int], seconds: float) -> bool:
        with self._lock:
            if self._ended is None:
                self._ended = _start(call, "transport-nccl-end")
            thread = self._ended
        thread.join(seconds)
        return not thread.is_alive()

    def __del__(self) -> None:
        # Whoever is in a call with it holds this object. What does not end is kept.
        if self._ended is not None and not self._ended.is_alive():
            lib.tn_nccl_free(self._pointer)


def open_comm(device: int, ranks: int, rank: int, unique: bytes, seconds: float) -> Comm:
    """By all ranks. Raises DeadlineExceeded, NcclError, PeerLost, and Unavailable without a GPU."""
    found: list[Any] = []
    ends = time.monotonic() + seconds

    def call() -> int:
        out: Any = ffi.new("struct tn_nccl **")
        status = lib.tn_nccl_open(device, ranks, rank, unique, out)
        found.append(out[0] if status == Status.OK else failure(status))
        return int(status)

    # In a thread: an older library blocks until all ranks are there, and cannot be called back.
    thread = _start(call, "transport-nccl-begin")
    thread.join(seconds)
    if not found:
        raise _late("making a communicator")
    if isinstance(found[0], Exception):
        raise found[0]
    return begun(Comm(found[0], device), ends - time.monotonic(), "making a communicator")


def begun(comm: Comm, seconds: float, what: str) -> Comm:
    """Waits until it is ready; ends it where that fails."""
    try:
        comm.wait_ready(time.monotonic() + seconds, what)
    except BaseException:
        if not comm.abort():
            _log.warning("%s failed, and the library does not return from its abort", what)
        raise
    return comm


def _start(call: Callable[[], int], name: str) -> threading.Thread:
    thread = threading.Thread(target=call, name=name, daemon=True)
    thread.start()
    return thread


def _late(what: str) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"{what} did not end within its deadline: is every rank there, and do they reach each"
        " other? NCCL_DEBUG=INFO tells more",
        op=what,
        status=Status.DEADLINE,
    )
