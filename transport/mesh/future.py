"""A value that is on its way. May import wheel, types and errors.

Waiting never consumes it: `get` may be called again, from any thread, and a timeout leaves it as
it was. Its own deadline ends it. Values are decoded by whoever asks first, not by who reads the
link.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from transport.errors import ActorCrashed, InvalidUse, TransportError
from transport.mesh.wheel import Gate, shared
from transport.types import check_timeout

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Iterable

T = TypeVar("T")

logger = logging.getLogger(__name__)

_GRACE = 5.0  # seconds for what is overdue to be ended


class Reply(Protocol):
    """What came for one member."""

    @property
    def failed(self) -> bool: ...

    @property
    def heavy(self) -> bool:
        """Whether decoding may block, or somebody waits for it to be done."""
        ...

    def value(self) -> Any:
        """Decodes it; raises what the endpoint raised. Called once."""

    def drop(self) -> None:
        """Nobody will ask for it. Takes no lock."""


class Failed:
    """A reply that did not come. `expected`: because its mesh was stopped or its rank replaced."""

    failed = True
    heavy = False

    def __init__(self, error: BaseException, *, expected: bool = False) -> None:
        self._error = error
        self.expected = expected

    def value(self) -> Any:
        raise self._error

    def drop(self) -> None:
        pass


class Future(Generic[T]):
    """Of `count` replies, put together by `join` from their values in order.

    It fails with the first reply that does; a failure that nobody asked for is logged when the
    future goes, as asyncio does. `end` is its deadline (time.monotonic); `overdue` is
    called then by a waiter, and settles what is missing.
    """

    def __init__(
        self,
        count: int,
        join: Callable[[list[Any]], T],
        end: float = float("inf"),
        overdue: Callable[[], object] = lambda: None,
    ) -> None:
        self._wheel = shared()
        self._gates: list[Gate] = []
        self._lock = threading.Lock()
        self._decoding = threading.Lock()
        self._replies: list[Reply | None] = [None] * count
        self._missing = count
        self._first_failed: Reply | None = None
        self._join = join
        self._end = end
        self._overdue = overdue
        self._outcome: tuple[bool, Any] | None = None
        self._watchers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.finished: Callable[[], None] = lambda: None  # once the last reply came
        self.unasked = False  # nobody is meant to ask for it
        self.answered_by = 0  # a thread that answers, and so cannot wait

    # ------------------------------------------------------------------------------------- settling
    def settle(self, index: int, reply: Reply) -> None:
        """From the thread that drives, or whoever found that it cannot come. The first counts."""
        with self._lock:
            late = self._outcome is not None
            if self._replies[index] is None:
                self._replies[index] = reply
                self._missing -= 1
                if reply.failed and self._first_failed is None:
                    self._first_failed = reply
            done, last = self.done(), not self._missing
            watchers = tuple(self._watchers) if done else ()
            gates = tuple(self._gates) if done else ()
        for gate in gates:
            gate.set()
        for loop, waiter in watchers:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_wake, waiter)
        if done:  # not before: after Ctrl-C in between the same reply comes once more (link.py)
            self._watchers.clear()
        if late:
            reply.drop()
        if last:
            self.finished()

    # -------------------------------------------------------------------------------------- waiting
    def done(self) -> bool:
        """Whether `get` would return, or raise, at once."""
        return not self._missing or self._first_failed is not None

    def get(self, timeout: float | None = None) -> T:
        """The value. Raises what the endpoint raised (ActorError), ActorCrashed, or TimeoutError
        after `timeout` seconds, which changes nothing: it can be asked for again. InvalidUse in an
        actor's own thread where it would wait for itself."""
        if not self.done():
            self._wait(check_timeout(timeout))
        return self._take()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What `get` would raise; None when it would not. Raises TimeoutError as get does."""
        if not self.done():
            self._wait(check_timeout(timeout))
        worked, outcome = self._resolved()
        return None if worked else outcome

    def __await__(self) -> Generator[Any, None, T]:
        loop = _running_loop()
        if loop is None:
            return self.get()
        if not self.done():
            waiter = self._watch(loop)
            yield from waiter.__await__()
        if self._heavy():
            yield from loop.run_in_executor(None, self._resolved).__await__()
        return self._take()

    def _wait(self, timeout: float | None) -> None:
        if self.answered_by == threading.get_ident():
            raise InvalidUse(
                "this actor waits for a call to itself, which it cannot answer meanwhile: call "
                "the method of self, or await the future in an async endpoint"
            )
        asked = float("inf") if timeout is None else time.monotonic() + timeout
        gate, end = Gate(self._wheel), self._end
        with self._lock:
            self._gates.append(gate)
        try:
            while not self.done():
                if self._wheel.wait(gate, min(asked, end)):
                    return
                if time.monotonic() >= asked:
                    raise TimeoutError(f"no answer within {timeout:g} s; it may still come")
                if end > self._end:
                    self._abandon()
                self._overdue()  # which ends what did not answer, and that takes a moment
                end = time.monotonic() + _GRACE
        finally:
            with self._lock:
                self._gates.remove(gate)

    def _abandon(self) -> None:
        error = ActorCrashed("no answer before the deadline", cause="did not answer in time")
        for index, reply in enumerate(self._replies):
            if reply is None:
                self.settle(index, Failed(error))

    def _watch(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        waiter: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self.done():
                waiter.set_result(None)
            else:
                self._watchers.append((loop, waiter))
        return waiter

    # -------------------------------------------------------------------------------------- outcome
    def _heavy(self) -> bool:
        if self._outcome is not None:
            return False
        return any(reply is not None and reply.heavy for reply in self._replies)

    def _take(self) -> T:
        worked, outcome = self._resolved()
        if not worked:
            raise outcome.again() if isinstance(outcome, TransportError) else outcome
        return outcome  # type: ignore[no-any-return]

    def _resolved(self) -> tuple[bool, Any]:
        if self._outcome is None:
            with self._lock:
                failed, replies = self._first_failed, tuple(self._replies)
            self._resolve(failed, replies)
        assert self._outcome is not None
        return self._outcome

    def _resolve(self, failed: Reply | None, replies: tuple[Reply | None, ...]) -> None:
        with self._decoding:
            if self._outcome is not None:
                return
            try:
                if failed is not None:
                    _drop_all(reply for reply in replies if reply is not failed)
                    failed.value()
                values = [reply.value() for reply in replies if reply is not None]
                self._outcome = True, self._join(values)
            except Exception as error:
                self._outcome = False, error.with_traceback(None)

    def __del__(self) -> None:
        if getattr(self, "_watchers", None) is None or self._outcome is not None:
            return  # Ctrl-C may have come before it was made
        failed = self._first_failed
        _drop_all(reply for reply in self._replies if reply is not failed)
        if failed is not None and not self.unasked and not getattr(failed, "expected", False):
            self._wheel.later(lambda: _log_unasked(failed))  # here no lock may be taken

    def __repr__(self) -> str:
        state = "done" if self.done() else f"{self._missing} of {len(self._replies)} to come"
        return f"<Future: {state}>"


def _drop_all(replies: Iterable[Reply | None]) -> None:
    for reply in replies:
        if reply is not None:
            reply.drop()


def _log_unasked(failed: Reply) -> None:
    """On a thread of its own: what is logged may wait for whoever reads it."""
    with contextlib.suppress(RuntimeError):  # the interpreter ends
        threading.Thread(target=_log, args=(failed,), name="mesh-unasked", daemon=True).start()


def _log(failed: Reply) -> None:
    try:
        failed.value()
    except Exception as error:
        text = "a call failed and nobody asked for its outcome: %s"
        logger.error(text, error, exc_info=error.__cause__)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    loops = sys.modules.get("asyncio")  # who has not imported it runs no loop
    if loops is None:
        return None
    try:
        return loops.get_running_loop()  # type: ignore[no-any-return]
    except RuntimeError:
        return None
