"""One collective operation that was called: it waits, or is waited for, as a Transfer does.

May import call, errors and types. `line` begins and drives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from transport.collectives.call import gpu_of
from transport.errors import Cancelled, DeadlineExceeded, InvalidUse
from transport.ffi import handle
from transport.types import check_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from transport.collectives.call import Call
    from transport.collectives.carrier import Carrier, Work
    from transport.collectives.line import Line
    from transport.errors import TransportError


class Operation:
    """`wait()` or `await` it: both return what the method that made it promises, the output tensor
    for most, and raise what went wrong. What the outputs hold then is unspecified.

    Operations of a communicator are carried out in the order of their calls, also when nobody
    waits. Dropping one is safe: its tensors are kept until it has ended.
    """

    def __init__(
        self,
        line: Line,
        carrier: Carrier | None,
        calls: Sequence[Call],
        result: Any,
        deadline: float,
        stream: Any = None,
    ) -> None:
        self._line = line
        self.calls = tuple(calls)
        self._result: Any = result
        self._stream = stream
        self._carrier = carrier
        self._begun = time.monotonic()
        self.limit = deadline
        self._elapsed: float | None = None
        self._error: TransportError | None = None
        self._work: Work | None = None
        self._callbacks: list[Callable[[Operation], object]] = []
        self._ranks: tuple[int, ...] | None = None
        self._pid = handle.here

    # ------------------------------------------------------------------------------------- waiting
    def wait(self, timeout: float | None = None) -> Any:
        """Blocks until it has ended; carries it out in this thread where that is needed.

        Raises TimeoutError after `timeout` seconds, which leaves it alive; RankLost when a member
        is lost; DeadlineExceeded when its own deadline has passed.
        """
        limit = check_timeout(timeout)
        self._check_here()
        if self._carrier is None and self._elapsed is None:
            raise InvalidUse("coalesced calls begin at the end of the with block: wait after it")
        if not self._line.drive(self, limit):
            raise TimeoutError(f"the operation has not ended after {timeout} s; it goes on")
        if self._error is not None:
            raise self._error.again()
        return self._result

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait_async().__await__()

    async def _wait_async(self) -> Any:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def tell(_: Operation) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(ended.set)

        self.add_done_callback(tell)
        await ended.wait()
        return self.wait()

    def wait_on(self, stream: Any) -> Operation:
        """Lets a GPU's stream wait for it, instead of this thread. Blocks for what no stream
        orders: CPU tensors, and all that the carrier "onesided" has."""
        self._check_here()
        if self._work is None or self.done or not self.streamed:
            self.wait()
        else:
            self._work.wait_on(stream)
        return self

    def add_done_callback(self, callback: Callable[[Operation], object]) -> None:
        """Calls back once it has ended, with itself, on whatever thread saw that; at once where it
        has. The callback must not block."""
        self._check_here()
        if not self._line.tell(self, callback):
            callback(self)

    def exception_at_end(self) -> TransportError | None:
        """What went wrong, once it has ended."""
        self._check_here()
        self._line.drive(self, None)
        return self._error

    def cancel(self) -> None:
        """Ends it where it has not begun. One that has begun cannot be ended on one rank alone:
        it goes on.

        The other ranks still make the call, so that the group is out of step and breaks with the
        next one: it is for a communicator that is about to be closed."""
        self._check_here()
        self._line.withdraw(self, Cancelled("the operation was cancelled before it began"))

    # --------------------------------------------------------------------------------------- facts
    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        self._check_here()
        return self._elapsed is not None or self._line.look(self)

    def exception(self) -> TransportError | None:
        """What went wrong; None while it has not ended, and where nothing did."""
        return self._error if self.done else None

    @property
    def kind(self) -> str:
        """ "all_reduce" and so on; "coalesced" for several."""
        return self.calls[0].kind.value if len(self.calls) == 1 else "coalesced"

    @property
    def carrier(self) -> str:
        """What carries it: "gloo", "nccl", "onesided"."""
        return self._carrier.name if self._carrier is not None else ""

    @property
    def provider(self) -> str:
        """The same, as a Transfer calls it."""
        return self._carrier.name if self._carrier is not None else ""

    @property
    def ranks(self) -> tuple[int, ...] | None:
        """Who took part, where fewer than all may (`tolerate_failures`); None where all did."""
        return self._ranks

    @property
    def nbytes(self) -> int:
        """Of this rank's tensors."""
        return sum(call.bytes for call in self.calls)

    @property
    def elapsed(self) -> float:
        """Seconds from the call to the end, or to now."""
        return time.monotonic() - self._begun if self._elapsed is None else self._elapsed

    def __repr__(self) -> str:
        state = "pending" if self._elapsed is None else "failed" if self._error else "done"
        return f"<Operation {self.kind} of {self.nbytes} bytes by {self.carrier}: {state}>"

    def _check_here(self) -> None:
        """Raises InvalidUse for one that was under way in the parent when this process forked."""
        if self._pid != handle.here and self._elapsed is None:
            raise handle.foreign("operation", self._pid, "only there it goes on")

    # ------------------------------------------------------------------------------- for the line
    def also(self, call: Call, result: Any) -> Operation:
        """One more, before it begins."""
        self.calls = (*self.calls, call)
        self._result.append(result)
        return self

    def carrier_of(self, carrier: Carrier) -> None:
        self._carrier = carrier

    @property
    def driven(self) -> bool:
        return self._carrier is not None and self._carrier.driven

    @property
    def streamed(self) -> bool:
        """Whether a GPU's stream orders it: it begins in the call, whatever else is under way."""
        return bool(getattr(self._carrier, "streamed", False))

    @property
    def on_gpu(self) -> bool:
        return any(gpu_of(call) is not None for call in self.calls)

    def mark(self, before: Sequence[Operation]) -> None:
        """In the caller's thread: what GPUs' streams have to do by now comes first, and so do the
        operations `before` it there. Raises what the driver says."""
        moment = getattr(self._carrier, "moment", None)
        if moment is not None and self.on_gpu:
            works = [each._work for each in before if each._work is not None]
            self._stream = moment(self.calls, self._stream, works, self.left())

    def left(self) -> float:
        """Seconds until its deadline."""
        return self._begun + self.limit - time.monotonic()

    def begin(self) -> None:
        """Raises TransportError."""
        left = self.left()
        if left <= 0:
            late = f"{self.kind} waited {self.limit:.3g} s for those before it"
            raise DeadlineExceeded(late, op=self.kind)
        assert self._carrier is not None
        self._work = self._carrier.begin(self.calls, self._stream, left)

    def end(self, error: TransportError | None) -> None:
        self._error = None if error is None else error.again()
        self._elapsed = time.monotonic() - self._begun
        if error is not None:
            self._result = None
