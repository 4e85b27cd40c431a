"""The operations of one communicator, one after the other.

May import operation, errors. Whoever waits for one drives those before it, too; a thread does so
where nobody waits and a carrier, a callback or a queue needs it. Sends and receives stand beside
the line: two ranks that first receive and then send must not wait for each other. So do operations
of carriers that GPUs' streams order: they have to be in the stream when the call returns. What they
come after in the line, of tensors on GPUs, has to have ended then.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from transport.collectives.call import Kind
from transport.errors import TransferError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.collectives.operation import Operation

    Explain = Callable[[Operation, TransportError], TransportError]

_SLICE = 0.05  # seconds that whoever waits stays below Python: then Ctrl-C is seen
_LOOK = 0.01  # seconds that the thread stays there: then a caller may take over
_ALONE = 0.002  # seconds between looks at messages beside the line
_BESIDE = (Kind.SEND, Kind.RECV)


class Line:
    """`explain` turns what a carrier raised into what the caller gets; it may wait a moment."""

    def __init__(self, name: str, explain: Explain) -> None:
        self._name = name
        self._explain = explain
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # for callers
        self._due = threading.Condition(self._lock)  # for the thread
        self._waiting = 0  # callers that wait for whoever drives
        self._queue: deque[Operation] = deque()
        self._beside: list[Operation] = []
        self._driving = False
        self._wanted = False  # the thread has something to do
        self._ended: TransportError | None = None
        self._thread: threading.Thread | None = None
        self.begun = 0  # collectives so far
        self.last = ""  # of them, in words

    # ------------------------------------------------------------------------------------- callers
    def submit(self, operation: Operation) -> Operation:
        """Raises what ended the line."""
        if operation.streamed:
            self._await_gpus(operation)
        else:
            operation.mark([each for each in list(self._beside) if each.streamed])
        with self._lock:
            if self._ended is not None:
                raise self._ended
            beside = operation.streamed or all(call.kind in _BESIDE for call in operation.calls)
            first = not beside and not self._queue and not self._driving
            if beside:
                self._beside.append(operation)
            else:
                self._queue.append(operation)
            self._driving = self._driving or first  # nobody else begins or ends it meanwhile
        if beside:
            self._begin_beside(operation)
        elif first:
            try:
                self._begin(operation)
            finally:
                self._leave(operation)
        else:
            self._want()
        return operation

    def _await_gpus(self, operation: Operation) -> None:
        """Until those before it have ended whose bytes its stream would not wait for."""
        for each in list(self._queue):
            if each.on_gpu:
                self.drive(each, max(operation.left(), 0.0))

    def drive(self, operation: Operation, timeout: float | None) -> bool:
        """Until the operation has ended; False after `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while operation._elapsed is None:
            left = _SLICE if end is None else min(_SLICE, end - time.monotonic())
            if operation in self._beside:
                self._step(operation, max(left, 0))
            elif self._take(max(left, 0)):
                try:
                    self._work(operation, left)
                finally:
                    self._leave(operation)
            if end is not None and time.monotonic() >= end:
                return operation._elapsed is not None
        return True

    def look(self, operation: Operation) -> bool:
        """Whether it has ended, without blocking."""
        head = self._queue[0] if self._queue else None
        work = operation._work
        if work is not None and (head is operation or operation in self._beside) and work.done():
            self.drive(operation, 0.0)
        return operation._elapsed is not None

    def tell(self, operation: Operation, callback: Callable[[Operation], object]) -> bool:
        """False: it has ended."""
        with self._lock:
            if operation._elapsed is not None:
                return False
            operation._callbacks.append(callback)
        self._want()
        return True

    def withdraw(self, operation: Operation, error: TransportError) -> None:
        with self._lock:
            if operation not in self._queue or operation is self._queue[0]:
                return
            self._queue.remove(operation)
        self._finish(operation, error)

    def fail(self, error: TransportError) -> None:
        """From now on all calls raise it, and so do those that have not begun. What has begun ends
        by its carrier, which is aborted."""
        with self._lock:
            self._ended = self._ended or error
            waiting = [each for each in self._queue if each._work is None]
            begun = [each for each in self._queue if each._work is not None]
            if self._driving and self._queue and self._queue[0] in waiting:
                begun.append(waiting.pop(0))  # it is about to begin: its carrier ends it
            self._queue = deque(begun)
        for operation in waiting:
            self._finish(operation, error)
        self._want()

    def settle(self, timeout: float) -> bool:
        """Until nothing is under way, or so many seconds have passed."""
        end = time.monotonic() + timeout
        for operation in [*self._queue, *self._beside]:
            self.drive(operation, max(0.0, end - time.monotonic()))
        return not self._queue and not self._beside

    # ------------------------------------------------------------------------------ who drives it
    def _take(self, timeout: float) -> bool:
        with self._lock:
            if self._driving:
                self._waiting += 1
                try:
                    self._changed.wait(timeout)
                finally:
                    self._waiting -= 1
            if self._driving:
                return False
            self._driving = True
            return True

    def _leave(self, operation: Operation | None) -> None:
        """`operation` is what its caller will wait for, perhaps at once."""
        with self._lock:
            self._driving = False
            head = self._queue[0] if self._queue else None
            if head is not None and (head is not operation or head._callbacks or not head.driven):
                self._wake()
            self._changed.notify_all()

    def _work(self, until: Operation, timeout: float) -> None:
        """Drives the head, for its time or until that operation has ended."""
        end = time.monotonic() + timeout
        while until._elapsed is None and self._queue:
            head = self._queue[0]
            if head._work is None and not self._begin(head):
                continue
            if not self._step(head, max(0.0, end - time.monotonic())):
                return

    def _begin(self, operation: Operation) -> bool:
        self.begun += 1
        self.last = _words(operation)
        return self._guarded(operation, operation.begin)

    def _begin_beside(self, operation: Operation) -> None:
        if operation.streamed:
            self._sweep()
            self.begun += 1
            self.last = _words(operation)
        if self._guarded(operation, operation.begin) and operation._callbacks:
            self._want()

    def _sweep(self) -> None:
        """Lets go of what has ended in a stream, and nobody has waited for."""
        for each in list(self._beside):
            if each.streamed and each._work is not None and each._work.done():
                self._step(each, 0.0)

    def _step(self, operation: Operation, timeout: float) -> bool:
        """Whether it has ended."""
        work = operation._work
        if work is None:
            return operation._elapsed is not None

        def wait() -> None:
            if work.wait(timeout):
                self._finish(operation, None)

        self._guarded(operation, wait)
        return operation._elapsed is not None

    def _guarded(self, operation: Operation, function: Callable[[], object]) -> bool:
        try:
            function()
        except TransportError as error:
            self._finish(operation, self._explain(operation, error))
            return False
        except Exception as error:  # whatever it is, nobody must wait for it for ever
            unknown = TransferError(f"{operation.carrier}: {error}", op=operation.kind)
            unknown.__cause__ = error
            self._finish(operation, self._explain(operation, unknown))
            return False
        return True

    def _finish(self, operation: Operation, error: TransportError | None) -> None:
        with self._lock:
            if operation._elapsed is not None:
                return
            operation.end(error)
            if operation in self._beside:
                self._beside.remove(operation)
            elif operation in self._queue:
                self._queue.remove(operation)
            callbacks, operation._callbacks = operation._callbacks, []
            self._changed.notify_all()
        for callback in callbacks:
            callback(operation)

    # ---------------------------------------------------------------------------------- the thread
    def _want(self) -> None:
        with self._lock:
            self._wake()

    def _wake(self) -> None:
        """With the lock."""
        self._wanted = True
        self._due.notify()
        if self._thread is None:
            name = f"transport-{self._name}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                head, messages = self._chores()
                if head is None and not messages:
                    if self._ended is not None and not self._queue and not self._beside:
                        self._thread = None
                        return
                    self._due.wait(_LOOK)
                    continue
            for message in messages:
                self._step(message, 0.0 if head is not None else _ALONE / len(messages))
            if head is not None:
                try:
                    self._work(head, _ALONE if messages else _LOOK)
                finally:
                    self._leave(None)

    def _chores(self) -> tuple[Operation | None, list[Operation]]:
        """With the lock. The head of the queue, where it is the thread's to drive it now, and
        messages whose end somebody wants to be told."""
        messages = [each for each in self._beside if each._callbacks]
        free = self._wanted and not self._driving and not self._waiting
        head = self._queue[0] if free and self._queue else None
        if head is not None:
            self._driving = True
            self._wanted = False
        elif not self._queue:
            self._wanted = False
        return head, messages


def _words(operation: Operation) -> str:
    call = operation.calls[0]
    part = next(iter((*call.source, *call.target)), None)
    if part is None:
        return operation.kind
    return f"{operation.kind} of {part.numel()} x {str(part.dtype).removeprefix('torch.')}"
