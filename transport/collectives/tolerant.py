"""An all-reduce that goes on without ranks that are lost. May import succession, seat, operation.

Each rank keeps what it gave until it has a result, and its last result until the next one: so that
whoever has none, because a rank died, gets it from those who have, or all repeat it.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from transport.collectives.operation import Operation
from transport.collectives.reduction import Reduction
from transport.collectives.succession import shrunk
from transport.errors import DeadlineExceeded, InvalidUse, RankLost, TransferError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from transport.collectives.arguments import Asked
    from transport.collectives.seat import Seat


def tolerate(
    moved: Callable[[Seat], object], seat: Seat, asked: Asked, limit: float
) -> TolerantOperation:
    """Begins it, in a thread of its own; `moved` is called with each seat of a new generation."""
    made = TolerantOperation(moved, seat, asked, limit)
    threading.Thread(target=made.run, name="transport-tolerant", daemon=True).start()
    return made


class _Alone:
    """Stands for a line of one operation."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.lock = threading.Lock()

    def drive(self, operation: Operation, timeout: float | None) -> bool:
        return self.ended.wait(timeout)

    def look(self, operation: Operation) -> bool:
        return self.ended.is_set()

    def tell(self, operation: Operation, callback: Callable[[Operation], object]) -> bool:
        with self.lock:
            if self.ended.is_set():
                return False
            operation._callbacks.append(callback)
            return True

    def withdraw(self, operation: Operation, error: TransportError) -> None:
        """It has begun."""


class TolerantOperation(Operation):
    """See `Communicator.all_reduce`."""

    def __init__(
        self, moved: Callable[[Seat], object], seat: Seat, asked: Asked, limit: float
    ) -> None:
        call = asked.call
        part = call.source[0]
        self._average = call.reduction is Reduction.AVERAGE
        if self._average and not (part.is_floating_point() or part.is_complex()):
            raise InvalidUse(f"an average of {part.dtype} would be cut to whole numbers")
        inner = replace(call, reduction=Reduction.SUM) if self._average else call
        seat_ok = seat.health.error is None or isinstance(seat.health.error, RankLost)
        seat.check_open()
        if not seat_ok:
            seat.check()
        self._alone = _Alone()
        carrier = seat.carriers.choose([inner], limit)
        super().__init__(self._alone, carrier, (call,), asked.result, limit)  # type: ignore[arg-type]
        self._inner = inner
        self._seat = seat
        self._moved = moved
        self._given: torch.Tensor = part.clone()
        self._sum: torch.Tensor = part.clone()
        self._numbers = list(range(seat.group.size))

    def run(self) -> None:
        error: TransportError | None = None
        try:
            self._repeat()
            self._deliver()
        except TransportError as failed:
            error = failed
        except Exception as failed:
            error = TransferError(f"all_reduce: {failed}", op="all_reduce")
            error.__cause__ = failed
        with self._alone.lock:
            self.end(error)
            self._alone.ended.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def _repeat(self) -> None:
        """Until `_sum` has the result and `_ranks` those who took part."""
        while True:
            took_part = tuple(self._numbers)
            try:
                self._attempt()
            except RankLost:
                caught = self._shrink()
            else:
                self._seat.kept.finish(self._sum)
                caught = True
            if caught:
                self._ranks = took_part
                return

    def _attempt(self) -> None:
        call = replace(self._inner, source=(self._given,), target=(self._sum,))
        self._seat.run([call], None, self._left(), None).wait()

    def _shrink(self) -> bool:
        """Whether those who had the result gave it."""
        self._seat, numbers, caught = shrunk(self._seat, self._left(), self._sum)
        self._numbers = [self._numbers[rank] for rank in numbers]
        self._moved(self._seat)
        return caught

    def _left(self) -> float:
        left = self.left()
        if left <= 0:
            late = f"all_reduce did not end within {self.limit:.3g} s"
            raise DeadlineExceeded(late, op="all_reduce")
        return left

    def _deliver(self) -> None:
        target = self.calls[0].target[0]
        assert self._ranks is not None
        result = self._sum / len(self._ranks) if self._average else self._sum
        target.copy_(result.view_as(target))
