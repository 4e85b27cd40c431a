"""An operation in flight, however many native transfers it takes.

May import progress, memory, ffi and errors. The native transfers are freed by the finalizer's way
(Core.drop), so that any number of threads may look at one Transfer. Local memory is kept alive by
`_pins` until no byte can move any more.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from transport.engine.progress import ELSEWHERE, ENDED
from transport.engine.streams import stream_of
from transport.errors import InvalidUse, Status, TransportError, from_status
from transport.ffi import failure, ffi, lib, text
from transport.ffi.handle import unpicklable
from transport.types import check_timeout

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from typing_extensions import Self

    from transport.engine.core import Core, Flight
    from transport.engine.progress import LoopQueue

SLICE_NS = 50_000_000  # so that Ctrl-C is seen: C returns on a signal, Python then runs its handler
_LOOK = 0.002  # seconds between looks where no queue can tell
_RESULT = ffi.typeof("struct tn_result *")
_PENDING = int(Status.PENDING)
_OK = int(Status.OK)
_UNAVAILABLE = int(Status.UNAVAILABLE)
_NOTHING: list[Any] = []


class _Outcome(NamedTuple):
    """How it ended."""

    status: int
    error: int
    text: str
    op: str
    peer: str
    provider: str | None
    path: str
    nbytes: int
    elapsed: float


class Transfer:
    """Reads and writes in flight. `wait()` or `await` it; both raise what went wrong.

    Dropping it early is safe: the data still moves, and the memory stays pinned until it is quiet.
    """

    _runs = 0  # a transfer that is prepared counts them

    __slots__ = (
        "__weakref__",
        "_core",
        "_ended",
        "_flights",
        "_outcome",
        "_parent",
        "_pins",
        "_watches",
    )

    def __init__(self, parent: object, core: Core, flights: list[Flight], pins: list[Any]) -> None:
        self._parent = parent  # the engine must outlive its transfers
        self._core = core
        self._pins = pins
        core.pinned[id(pins)] = pins
        self._ended = _PENDING
        self._outcome: _Outcome | None = None
        # By index of the flight: who was last asked to tell, of this run or of an earlier one.
        self._watches: dict[int, tuple[LoopQueue, int]] = {}
        self._flights = flights  # last: the finalizer needs all of the above

    # ------------------------------------------------------------------------------------- waiting
    def wait(self, timeout: float | None = None) -> Self:
        """Blocks until it has ended and returns itself; makes progress in this thread meanwhile.

        Raises the typed error when it failed, and TimeoutError after `timeout` seconds, which
        leaves it alive.
        """
        if not self._block(timeout):
            raise TimeoutError(f"the transfer has not ended after {timeout} s; it goes on")
        return self._result()

    def __await__(self) -> Generator[Any, None, Self]:
        return self._wait_async().__await__()

    async def _wait_async(self) -> Self:
        try:
            await self._ended_async()
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self._result()

    def wait_quiet(self, timeout: float | None = None) -> bool:
        """Blocks until no byte of it can move any more; False after `timeout` seconds."""
        end = None if timeout is None else end_of(timeout)
        while not self.quiet:
            left = slice_ns(end)
            if left == 0:
                return False
            flight = next((f for f in self._flights if not quiet(f)), None)
            if flight is not None:
                self._progress(lib.tn_transfer_wait_quiet, flight, left)
        return True

    def wait_on(self, stream: Any) -> Self:
        """Lets what is put into a GPU's stream from now on wait until no byte of it can move.

        `stream`: a torch stream, an object with `__cuda_stream__`, or a handle (of the first GPU).
        Returns itself at once; where the GPU's driver cannot do it, when it has ended. The stream
        goes on also when the transfer fails, which `exception()` tells then.
        """
        handle, device = stream_of(stream)
        for flight in self._flights:
            if quiet(flight):
                continue
            with self._core:
                status = lib.tn_transfer_hold_stream(flight.pointer, device or 0, handle)
                if status not in (_OK, _UNAVAILABLE):
                    raise failure(status)
            if status == _UNAVAILABLE:
                self.wait_quiet()
        return self

    def cancel(self) -> None:
        """Ends it now, unless it has ended. Bytes under way may still land: see `quiet`."""
        try:
            with self._core:
                for flight in self._flights:
                    lib.tn_transfer_cancel(flight.pointer)
        except InvalidUse:
            if not self._core.gate.closed:
                raise
            # Closing the engine ends everything.

    # --------------------------------------------------------------------------------------- facts
    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._status() != _PENDING

    @property
    def status(self) -> str:
        """ "pending", "ok", or what went wrong in a word: "peer_lost", "deadline" and so on."""
        return Status(self._status()).name.lower()

    @property
    def quiet(self) -> bool:
        """Whether no byte of it can move any more, here or at the peer."""
        if self._pins and self.done and all(map(quiet, self._flights)):
            self._unpin()
        return not self._pins

    def exception(self) -> TransportError | None:
        """Why it failed; None while it has not."""
        return None if self._status() >= _OK else self._error()

    @property
    def provider(self) -> str | None:
        """Which provider carries or carried it; several are joined with "+". None: none yet."""
        return self._facts().provider

    @property
    def path(self) -> str:
        """How the provider carried it: "mapped", "process_vm", "stream", "rc" and so on."""
        return self._facts().path

    @property
    def bytes(self) -> int:
        """All bytes that it is to move."""
        return self._facts().nbytes

    @property
    def elapsed(self) -> float:
        """Seconds from submission to the end, or to now, by CLOCK_MONOTONIC."""
        return self._facts().elapsed

    def __reduce__(self) -> NoReturn:
        raise unpicklable("transfer", "wait for it here")

    def __repr__(self) -> str:
        facts = self._facts()
        how = f" by {facts.provider} ({facts.path})" if facts.provider else ""
        return f"<Transfer {facts.op} of {facts.nbytes} bytes{how}: {self.status}>"

    def __del__(self) -> None:
        if hasattr(self, "_flights"):  # Ctrl-C may have come before
            self._core.drop(self._flights, self._pins)

    # -------------------------------------------------------------------------------------- inside
    def _status(self) -> int:
        """As one number: pending while a part is and none has failed."""
        if self._ended != _PENDING:
            return self._ended
        status = _OK
        for flight in self._flights:
            part = lib.tn_transfer_status(flight.pointer)
            if part < _OK:
                return self._fail()
            if part == _PENDING:
                status = _PENDING
        if status == _OK:
            self._unpin()  # what ended well is quiet
        self._ended = status
        return status

    def _unpin(self) -> None:
        self._core.pinned.pop(id(self._pins), None)
        self._pins = _NOTHING

    def _fail(self) -> int:
        """Remembers why. Several threads may do it at once, with the same outcome."""
        if len(self._flights) > 1:
            self.cancel()
        outcome = self._read()
        self._outcome = outcome
        self._ended = outcome.status
        return outcome.status

    def _facts(self) -> _Outcome:
        # The native transfers live as long as this object: what nobody asks for is never read.
        if self._outcome is None and self._status() != _PENDING:
            self._outcome = self._read()
        return self._outcome or self._read()

    def _read(self) -> _Outcome:
        results = [(_result_of(flight), flight) for flight in self._flights]
        if not results:
            return _Outcome(_OK, 0, "", "batch", "", None, "", 0, 0.0)
        failed = [pair for pair in results if pair[0].status < _OK]
        first, flight = min(failed or results, key=_by_cause)
        name = self._core.paths.name
        return _Outcome(
            first.status,
            first.error,
            text(first.text) + self._absent(first.status, flight),
            flight.op,
            flight.record.name,
            _joined([name(result.provider) for result, _ in results]),
            _joined([text(result.path) for result, _ in results]) or "",
            sum(result.bytes for result, _ in results),
            max(result.elapsed_ns for result, _ in results) / 1e9,
        )

    def _absent(self, status: int, flight: Flight) -> str:
        """Where no path was found: why the peer's connection has not the other providers."""
        if status != Status.NO_PATH:
            return ""
        absent = {**self._core.unused, **flight.record.reasons}
        return "".join(f"; it has no {name}: {why}" for name, why in absent.items())

    def _result(self) -> Self:
        if self._status() < _OK:
            raise self._error()
        return self

    def _error(self) -> TransportError:
        outcome = self._facts()
        return from_status(
            outcome.status,
            f"{outcome.op} {_PREPOSITIONS[outcome.op]} peer {outcome.peer}: {outcome.text}",
            peer=outcome.peer,
            op=outcome.op,
            transfer=self,
            error=outcome.error,
        )

    def _block(self, timeout: float | None) -> bool:
        end, run = None if timeout is None else end_of(timeout), self._runs
        while self._runs == run and self._status() == _PENDING:
            left = slice_ns(end)
            if left == 0:
                return False
            flight = next((f for f in self._flights if pending(f)), None)
            if flight is not None:
                self._progress(lib.tn_transfer_wait, flight, left)
        return True

    def _progress(self, call: Any, flight: Flight, nanoseconds: int) -> None:
        """One slice of waiting in C, or a short sleep while the engine is being closed."""
        gate = self._core.gate
        if gate.closed:
            time.sleep(_LOOK)
            return
        with gate:
            call(flight.pointer, nanoseconds)

    async def _ended_async(self) -> None:
        if self._status() != _PENDING:
            return
        ended, run = asyncio.Event(), self._runs
        while self._runs == run and self._status() == _PENDING:
            # Anew each time: what woke it may have been the end of an earlier run.
            told = self._watch_all(ended)
            if self._runs != run or self._status() != _PENDING:
                return  # it ended meanwhile, and nobody will tell
            if told:
                await ended.wait()
                ended.clear()
            else:
                await asyncio.sleep(_LOOK)

    def _watch_all(self, ended: asyncio.Event) -> bool:
        """Lets the event be set whenever a part ends; False: nobody will tell this loop."""
        try:
            with self._core:
                queue = self._core.queues.of_running_loop()
                told = [self._watch(i, f, queue, ended) for i, f in enumerate(self._flights)]
                return all(told)
        except InvalidUse:
            if not self._core.gate.closed:
                raise
            return False  # closing the engine ends everything soon

    def _watch(self, index: int, flight: Flight, queue: LoopQueue, ended: asyncio.Event) -> bool:
        """Lets the event be set at the flight's end; False: another loop is told, not this one."""
        known, cookie = self._watches.get(index, (None, 0))
        if known is queue and queue.join(cookie, ended.set):
            return True
        cookie = queue.watch(flight.pointer, ended.set)
        if cookie > ENDED:
            self._watches[index] = queue, cookie
        return cookie != ELSEWHERE


_PREPOSITIONS = {
    "read": "from",
    "write": "to",
    "batch": "with",
    "fetch_add": "at",
    "compare_swap": "at",
}


def _result_of(flight: Flight) -> Any:
    result = ffi.new(_RESULT)
    lib.tn_transfer_result(flight.pointer, result)
    return result


def _by_cause(pair: tuple[Any, Flight]) -> tuple[bool, int]:
    """The error that came first; those that followed from it (or from our cancel) come last."""
    result = pair[0]
    return result.status in (Status.CANCELLED, Status.FLUSHED), result.elapsed_ns


def pending(flight: Flight) -> bool:
    return bool(lib.tn_transfer_status(flight.pointer) == _PENDING)


def quiet(flight: Flight) -> bool:
    return bool(lib.tn_transfer_quiet(flight.pointer))


def _joined(words: Sequence[str | None]) -> str | None:
    return "+".join(dict.fromkeys(word for word in words if word)) or None


def end_of(timeout: float) -> float:
    return time.monotonic() + (check_timeout(timeout) or 0.0)


def slice_ns(end: float | None) -> int:
    """How long to wait in C now; 0 when the time is over."""
    if end is None:
        return SLICE_NS
    return max(0, min(SLICE_NS, int((end - time.monotonic()) * 1e9)))
