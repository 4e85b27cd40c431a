"""What torch gets for a call: its Work over an Operation of ours.

May import collectives and errors. Imports torch.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import Work

if TYPE_CHECKING:
    import datetime
    from collections.abc import Callable, Sequence

    from transport.collectives.operation import Operation


class TransportWork(Work):
    """`results` are the tensors that torch's future gives; `finish` is called once it has ended
    well, before anybody hears of it. What went wrong is raised as it is: RankLost and so on."""

    def __init__(
        self,
        operations: Sequence[Operation],
        results: Any,
        finish: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._operations = tuple(operations)
        self._results = results
        self._finish = finish
        self._lock = threading.Lock()
        self._finished = False
        self._promise: Any = None
        self._future: Any = None

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Blocks for CPU tensors; of a GPU's, torch's current stream waits instead."""
        seconds = timeout.total_seconds() if timeout else None
        for each in self._operations:
            if _on_gpu(each):
                each.wait_on(torch.cuda.current_stream())
            else:
                each.wait(seconds)
        self._end()
        return True

    def is_completed(self) -> bool:
        return all(each.done for each in self._operations)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Any:
        return next((e for each in self._operations if (e := each.exception())), None)

    def result(self) -> Any:
        return self._results

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> Any:
        """Done once all of it has ended; of a GPU's tensors likewise. What went wrong is a
        RuntimeError with the text of it, for such a future holds no exception of Python's."""
        with self._lock:
            if self._future is not None:
                return self._future
            self._promise = torch.futures.Future()
            # Not by set_exception, which makes the exception a value: DDP takes it for tensors.
            self._future = self._promise.then(self._outcome)
        left = [len(self._operations)]
        lock = threading.Lock()

        def tell(_: Operation | None) -> None:
            with lock:
                left[0] -= 1
                last = left[0] <= 0
            if last:
                self._fulfil()

        for each in self._operations:
            each.add_done_callback(tell)
        if not self._operations:
            tell(None)
        return self._future

    def _fulfil(self) -> None:
        if self.exception() is None:
            self._end()
        self._promise.set_result(None)

    def _outcome(self, _: Any) -> Any:
        error = self.exception()
        if error is not None:
            raise error
        return self._results

    def _end(self) -> None:
        with self._lock:
            if self._finished:
                return
            if self._finish is not None:
                self._finish()
            self._finished = True


def _on_gpu(operation: Operation) -> bool:
    part = next((p for call in operation.calls for p in (*call.source, *call.target)), None)
    return part is not None and part.device.type != "cpu"
