"""Transfers that are checked once and started any number of times.

May import transfer, submit, batch, memory, ffi and errors. What NIXL calls a prepared transfer and
MPI a persistent request (MPI 4.1, section 3.9): C keeps the checked ranges, and to start them is
one call that allocates nothing. Memory stays pinned for as long as it is open.
"""

from __future__ import annotations

import time
from threading import get_ident
from typing import TYPE_CHECKING, Any

from transport.engine import order
from transport.engine.batch import Read
from transport.engine.blocks import memory_of
from transport.engine.copies import Copies
from transport.engine.submit import (
    How,
    allowed,
    call_with_batch,
    checked_notify,
    flight_of,
    lifetime_ns,
    who_notifies,
)
from transport.engine.transfer import SLICE_NS, Transfer, end_of, pending, quiet
from transport.errors import InvalidUse, Status
from transport.ffi import failure, ffi, handle, lib
from transport.memory.region import Region
from transport.types import Closing

if TYPE_CHECKING:
    from typing_extensions import Self

    from transport.control.records import PeerRecord
    from transport.engine.batch import Part
    from transport.engine.core import Core, Flight
    from transport.engine.submit import Options

_PENDING, _OK = int(Status.PENDING), int(Status.OK)
_RUN = ffi.typeof("struct tn_run_outcome *")
_run = lib.tn_transfer_run
_run_at_once = lib.tn_transfer_run_at_once


def prepare(
    parent: object,
    core: Core,
    requests: list[Any],
    options: Options,
    sources: Sources | None = None,
) -> Prepared:
    """Checks everything; nothing begins. Call it within the engine's gate.

    Whoever has several of the same memory gives `sources`, and checks these himself before he
    starts them.
    """
    batch = core.batch()
    for request in requests:
        batch.add_request(request)
    notify = checked_notify(options.notify)
    parts = batch.parts()
    notified = who_notifies(parts) if notify is not None else ()
    watched = sources is None
    sources = Sources(local_sides(requests)) if sources is None else sources
    made = Prepared(parent, core, batch.pins, options, sources, watched=watched)
    made._devices = batch.devices
    for part in parts:
        made._add(part, notify if part in notified else None)
    made._find_sole()
    return made


class Prepared(Transfer, Closing):
    """A transfer that can be started again once it is over. Made by `Engine.prepare`.

    All that a Transfer tells, it tells of the last run; before the first one it is done. One thread
    starts it; any number may wait. A wait is for the run that was under way when it began; one that
    the next run overtakes returns. `deadline` and `notify` are each run's.
    """

    __slots__ = (
        "_begun",
        "_brief",
        "_closed",
        "_devices",
        "_entry",
        "_fence",
        "_former",
        "_legs",
        "_lifetime",
        "_loose",
        "_options",
        "_runs",
        "_sole",
        "_sources",
        "_watched",
        "_way",
    )

    def __init__(
        self,
        parent: object,
        core: Core,
        pins: list[Any],
        options: Options,
        sources: Sources,
        *,
        watched: bool = True,
    ) -> None:
        self._brief = False  # the next run can probably be one at once
        self._closed = False
        self._devices: set[int] = set()  # GPUs that local memory is of
        self._fence: Any = ffi.NULL  # of the run that is being started
        self._former: list[Flight] = []  # to peers that were lost; freed with this object
        self._legs: list[tuple[Part, Any]] = []  # for each flight, with its notification
        self._lifetime = lifetime_ns(core, options.deadline)
        self._options = options
        self._runs = 0
        self._begun = ffi.new(_RUN)
        self._sole: Any = None  # the native transfer, if it is one
        self._entry = core.gate.entry()
        self._sources = sources
        self._watched = watched  # False: somebody else checks the sources
        self._loose = watched and sources.loose
        self._way: tuple[int, str] | None = None  # what C calls it, and in words
        super().__init__(parent, core, [], pins)

    # ------------------------------------------------------------------------------------- running
    def start(self, deadline: float | None = None, *, stream: Any = None) -> Self:
        """Begins the next run and returns itself. Its cost does not depend on what was checked.

        `deadline` is of this run, instead of the one that it was prepared with. `stream`: see
        `Engine.submit`; the run begins once the stream's work so far is done.

        Raises InvalidUse while the last run is not over and quiet (see `wait_quiet`), when this or
        its local region is closed; where its peer was lost and is found anew, it begins there.
        """
        lifetime = self._lifetime if deadline is None else lifetime_ns(self._core, deadline)
        with self._core:
            self._about_to_run()
            if self._devices or stream is not None:
                self._start_fenced(lifetime, stream)
            else:
                self._start_all(lifetime)
        return self

    def _start_all(self, lifetime: int) -> None:
        for index, flight in enumerate(self._flights):
            status = lib.tn_transfer_start(flight.pointer, lifetime)
            if status != _OK:
                self._start_otherwise(index, status, lifetime)

    def _start_fenced(self, lifetime: int, stream: Any) -> None:
        self._fence = order.fence(self._core, self._devices, stream)
        try:
            self._follow(self._fence)
            self._start_all(lifetime)
        except BaseException:
            self._follow(ffi.NULL)
            raise
        finally:
            order.close(self._fence)
            self._fence = ffi.NULL

    def _follow(self, fence: Any) -> None:
        """The next run begins once the fence has passed; NULL: at once."""
        for flight in self._flights:
            lib.tn_transfer_fence(flight.pointer, fence)

    def run(self, timeout: float | None = None) -> Self:
        """`start()` and `wait(timeout)`, in one native call where it is one transfer."""
        if timeout is not None or self._sole is None or self._devices:
            return self._run_checked(timeout)
        if self._loose:
            self._sources.check()
        if self._brief:
            if _run_at_once(self._sole) == _OK:
                self._runs += 1
                return self
            self._brief = False
        return self._run_sole()

    def _run_sole(self) -> Self:
        # What repeats for each small message: C checks what can be checked there, and this does no
        # more than keep the engine open meanwhile (see Gate).
        pointer, gate = self._sole, self._core.gate
        entry = self._entry if self._entry[0] == get_ident() else self._new_entry()
        inside = gate.inside
        inside.append(entry)
        try:
            if gate.closed or gate.pid != handle.here:
                gate.refuse()
            status = _run(pointer, self._lifetime, SLICE_NS, self._begun)
        finally:
            inside.remove(entry)
        if status != _OK and self._begun.started != _OK:
            return self._run_checked(None)  # which says why not, or finds the peer anew
        self._brief = self._begun.brief == 1
        self._runs += 1
        return self if status == _OK else self.wait()

    def _run_checked(self, timeout: float | None) -> Self:
        end = None if timeout is None else end_of(timeout)
        self.start()
        return self.wait(None if end is None else max(end - time.monotonic(), 0.0))

    @property
    def runs(self) -> int:
        """How often it was started."""
        return self._runs

    @property
    def way(self) -> str:
        """How the last run was carried, as in "shm (mapped)"."""
        if self._sole is None:
            return f"{self.provider} ({self.path})"
        number = lib.tn_transfer_way(self._sole)
        if self._way is None or self._way[0] != number:
            self._way = number, f"{self.provider} ({self.path})"
        return self._way[1]

    @property
    def quiet(self) -> bool:
        """Whether no byte of the last run can move any more, here or at the peer."""
        found = all(map(quiet, self._flights))
        if found and self._closed:
            self._unpin()
        return found

    # ------------------------------------------------------------------------------------- closing
    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Lets go of the memory; a run that is under way is cancelled. Idempotent."""
        if self._closed or self._core.gate.pid != handle.here:
            return
        self._closed = True
        sealed = [lib.tn_transfer_seal(flight.pointer) for flight in self._flights]
        if not all(sealed):
            self.cancel()
        _ = self.quiet  # unpins; if it is not yet, whoever asks next does, or the finalizer

    def __del__(self) -> None:
        if hasattr(self, "_flights"):  # Ctrl-C may have come before
            self._core.drop([*self._flights, *self._former], self._pins)

    def __repr__(self) -> str:
        state = "closed" if self._closed else self.status if self._runs else "ready"
        return f"<Prepared {self._facts().op} of {self.bytes} bytes, run {self._runs}: {state}>"

    # -------------------------------------------------------------------------------------- inside
    def _add(self, part: Part, says: Any) -> None:
        record = self._record(part)
        self._legs.append((part, says))
        flight = flight_of(part, record)
        self._flights.append(flight)
        try:
            self._make(flight, part, says)
        except BaseException:
            if not flight.begun():
                self._flights.pop()
            raise

    def _find_sole(self) -> None:
        self._sole = self._flights[0].pointer if len(self._flights) == 1 else None
        self._brief = False

    def _new_entry(self) -> tuple[int, int]:
        """Another thread than before runs it."""
        self._entry = entry = self._core.gate.entry()
        return entry

    def _record(self, part: Part) -> PeerRecord:
        return self._core.plane.peer(part.owner.incarnation, part.owner.addresses)

    def _make(self, flight: Flight, part: Part, says: Any) -> None:
        mask = allowed(self._core, flight.record, self._options)
        call_with_batch(lib.tn_prepare, flight, part, How(mask, notify=says))

    def _about_to_run(self) -> None:
        if self._closed:
            raise InvalidUse("this prepared transfer is closed")
        if any(map(pending, self._flights)):
            raise InvalidUse("the prepared transfer is under way; wait for it, or cancel it")
        if self._watched:
            self._sources.check()
        self._runs += 1

    def _start_otherwise(self, index: int, status: int, lifetime: int) -> None:
        """C has not begun it: because the peer was lost, which may have come back, or it raises.

        What has begun of this run is cancelled then.
        """
        error = self._why_not(index, status)
        flight, (part, says) = self._flights[index], self._legs[index]
        try:
            record = self._record(part)
            if record is flight.record or lib.tn_peer_state(flight.record.native.pointer) >= _OK:
                raise error
            renewed = flight_of(part, record)
            self._make(renewed, part, says)
            self._former.append(flight)
            self._flights[index] = renewed
            self._find_sole()
            lib.tn_transfer_fence(renewed.pointer, self._fence)
            if lib.tn_transfer_start(renewed.pointer, lifetime) != _OK:
                raise self._why_not(index, status)
        except BaseException:
            for begun in self._flights[:index]:
                lib.tn_transfer_cancel(begun.pointer)
            self._runs -= index == 0
            raise
        finally:
            del error  # which holds this frame, that has the record of a lost peer

    def _why_not(self, index: int, status: int) -> Exception:
        flight = self._flights[index]
        kind = Status.INVALID if status == Status.AGAIN else status
        return failure(kind, peer=flight.record.name, op=flight.op)

    def _status(self) -> int:
        """Of the last run; nothing is remembered, because another may begin at any time."""
        run, status = self._runs, _OK
        for flight in self._flights:
            part = lib.tn_transfer_status(flight.pointer)
            if part < _OK:
                return self._failed(run)
            if part == _PENDING:
                status = _PENDING
        return status

    def _failed(self, run: int) -> int:
        if len(self._flights) > 1 and self._runs == run and any(map(pending, self._flights)):
            self.cancel()
        return self._read().status

    def _facts(self) -> Any:
        return self._read()


def local_sides(requests: list[Any]) -> list[Any]:
    """The local memories of requests. Of Copies C looks at the regions itself."""
    sides: list[Any] = []
    for request in requests:
        if isinstance(request, Copies):
            sides += [side for side in request.local if not isinstance(side, Region)]
        else:
            sides.append(memory_of(request.into if isinstance(request, Read) else request.source))
    return sides


class Sources:
    """The local sides, as far as they can be taken away between two runs."""

    __slots__ = ("_addresses", "_kept", "_sizes", "_storages", "regions")

    def __init__(self, sides: list[Any]) -> None:
        self.regions = tuple({id(it): it for it in sides if isinstance(it, Region)}.values())
        storages: dict[int, Any] = {}
        for side in sides:
            if hasattr(side, "untyped_storage"):  # one object for all views of it
                storage = side.untyped_storage()
                storages[id(storage)] = storage
        self._kept = list(storages.values())  # also when the tensors are set to others
        self._storages = [storage for storage in self._kept if storage.resizable()]
        self._addresses, self._sizes = self._look()

    @property
    def loose(self) -> bool:
        """Whether some of it can be taken away without C hearing of it."""
        return bool(self.regions or self._storages)

    def check(self) -> None:
        """Raises InvalidUse when a region was closed or a tensor's storage was resized."""
        for region in self.regions:
            region._check()
        if self._look() != (self._addresses, self._sizes):
            raise InvalidUse("a local tensor was resized; prepare the transfer anew")

    def _look(self) -> tuple[list[int], list[int]]:
        """Where the storages are now, and their sizes. There may be a hundred thousand."""
        if not self._storages:
            return [], []
        kind = type(self._storages[0])  # torch has one; its methods cost less when not looked up
        addresses = list(map(kind.data_ptr, self._storages))
        return addresses, list(map(kind.nbytes, self._storages))
