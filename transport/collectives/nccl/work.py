"""Calls that were put into a stream, and the thread that looks after those of one communicator.

May import comm, errors and the engine's streams.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from transport.engine.streams import stream_of
from transport.errors import DeadlineExceeded, Status, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.collectives.nccl.comm import Comm, Mark

_SHORTEST, _LONGEST = 20e-6, 1e-3  # seconds between two looks of a caller
_FAST, _SLOW = 1e-3, 10e-3  # and of the watcher


class NcclWork:
    """Ends once its stream has passed its mark, or with the error that ended its communicator.

    Keeps the tensors alive until then. `failing` tells whether that communicator is being aborted:
    then the stream passes the mark with nothing done.
    """

    def __init__(
        self,
        mark: Mark,
        kept: object,
        deadline: float,
        name: str,
        failing: Callable[[], bool],
    ) -> None:
        self.deadline = deadline  # by time.monotonic
        self.name = name
        self._mark: Mark | None = mark
        self._kept: object = kept
        self._failing = failing
        self._error: TransportError | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()

    def done(self) -> bool:
        return self._over.is_set() or self.look()

    def wait(self, timeout: float) -> bool:
        ends, nap = time.monotonic() + timeout, _SHORTEST
        while not self.done():
            left = ends - time.monotonic()
            if left <= 0:
                return False
            self._over.wait(min(nap, left))
            nap = min(nap * 2, _LONGEST)
        if self._error is not None:
            raise self._error.again()
        return True

    def wait_on(self, stream: Any) -> None:
        """Raises what went wrong, if anything has."""
        handle = stream_of(stream).handle
        with self._lock:
            if self._mark is not None:
                self._mark.wait_on(handle)
        if self._error is not None:
            raise self._error.again()

    def look(self) -> bool:
        """Whether it is over; asks the driver."""
        with self._lock:
            if self._mark is None:
                return True
            try:
                # In this order: what was passed before an abort began is done.
                if not self._mark.passed() or self._failing():
                    return False
            except TransportError as error:
                self._end(error)
            else:
                self._end(None)
            return True

    def passed(self) -> bool:
        """Whether the stream has passed it; it does not end by that."""
        with self._lock:
            try:
                return self._mark is None or self._mark.passed()
            except TransportError:
                return True

    def fail(self, error: TransportError, *, keep: bool) -> None:
        """Ends it. `keep`: the GPU may still touch the tensors, which are kept for good."""
        with self._lock:
            if self._mark is None:
                return
            if keep:
                _kept_for_good.append((self._mark, self._kept))
                self._mark = None
            self._end(error)

    def _end(self, error: TransportError | None) -> None:
        """The lock is held."""
        self._error = error
        if self._mark is not None:
            self._mark.close()
        self._mark = None
        self._kept = None
        self._over.set()


_kept_for_good: list[object] = []


class Watcher:
    """Ends works that are done, and tells of deadlines and of errors that a library found."""

    def __init__(self, comm: Comm, fail: Callable[[TransportError], None]) -> None:
        self._comm = comm
        self._fail = fail
        self._works: list[NcclWork] = []
        self._beginning: tuple[float, str] | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def add(self, work: NcclWork) -> None:
        with self._changed:
            self._works.append(work)
            self._wake()

    def begins(self, deadline: float, name: str) -> None:
        """A call into the library that may block; `has_begun` follows."""
        with self._changed:
            self._beginning = deadline, name
            self._wake()

    def has_begun(self) -> None:
        with self._changed:
            self._beginning = None

    def sweep(self) -> list[NcclWork]:
        """Forgets those that are over, and returns the others."""
        with self._changed:
            works = list(self._works)
        over = {id(work) for work in works if work.look()}
        with self._changed:
            self._works = [work for work in self._works if id(work) not in over]
        return [work for work in works if id(work) not in over]

    def pending(self) -> list[NcclWork]:
        """Those that no sweep found over. The watcher forgets them: whoever asks ends them."""
        with self._changed:
            works, self._works = self._works, []
            return works

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _wake(self) -> None:
        """The lock is held."""
        if self._thread is None and not self._closing:
            self._thread = threading.Thread(
                target=self._run, name="transport-nccl-watch", daemon=True
            )
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        nap = _FAST
        while True:
            with self._changed:
                while not (self._works or self._beginning or self._closing):
                    self._changed.wait()
                    nap = _FAST
                if self._closing:
                    return
                beginning = self._beginning
            error = self._look(beginning)
            if error is not None:
                self._fail(error)
                return
            time.sleep(nap)
            nap = min(nap * 1.5, _SLOW)

    def _look(self, beginning: tuple[float, str] | None) -> TransportError | None:
        left, now = self.sweep(), time.monotonic()
        late = [work.name for work in left if work.deadline <= now]
        if beginning is not None and beginning[0] <= now:
            late.append(beginning[1])
        if late:
            return DeadlineExceeded(
                f"{late[0]} did not end within its deadline", op=late[0], status=Status.DEADLINE
            )
        try:
            self._comm.ready()
        except TransportError as error:
            return error
        return None
