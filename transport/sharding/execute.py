"""A plan carried out on an engine: again and again, and by other sources where one is lost.

May import the engine, config, errors, types and all of this room.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from transport.engine.batch import READ, WRITE
from transport.engine.engine import check_engine
from transport.engine.sequence import Step, Steps
from transport.errors import InvalidUse, LayoutError, PeerError, PeerLost, StaleRegion, Status
from transport.sharding.binding import Binding
from transport.sharding.convert import check_convertible
from transport.sharding.missing import missing_of
from transport.sharding.parcels import Parcel, close_all, direct_parcels
from transport.sharding.plan import plan, ranks_of
from transport.sharding.run import Run
from transport.sharding.staging import Stage, staged_parcels
from transport.types import Closing, check_timeout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transport.engine.engine import Engine
    from transport.engine.prepared import Prepared
    from transport.errors import TransportError
    from transport.memory.region import Region
    from transport.memory.remote import RemoteRegion
    from transport.sharding.cut import Cut
    from transport.sharding.places import Places
    from transport.sharding.plan import Direction, Plan
    from transport.sharding.run import Progress, Report
    from transport.sharding.state import StateLayout


class Execution(Closing):
    """What one rank does to bring tensors from one layout to another, ready to be done repeatedly.

    With `direction="pull"` `rank` is a target rank and reads what its tensors need; with "push" it
    is a source rank and writes what it owes. `remote` are the handles of the other side's tensors,
    {rank: {local tensor's name: RemoteRegion}}; `local` are this rank's, by name: torch tensors or
    numpy arrays with any strides, buffers, Regions, and DTensors for their local tensors. Both must
    be as the layouts say.

    Everything is planned, checked, connected and registered when it is made: a run only moves
    bytes. Where source and target differ in dtype, this rank converts on the way: the reader in
    pull, the writer in push.

    Raises, before a byte moves, LayoutError for layouts that do not fit, InvalidUse for tensors
    and handles that are missing, unknown, of another shape, dtype or size, or read-only,
    RemoteAccessError for a handle without the right that is needed: all name the tensor.
    """

    def __init__(
        self,
        engine: Engine,
        source: StateLayout,
        target: StateLayout,
        rank: int,
        *,
        remote: Mapping[int, Mapping[str, RemoteRegion | Region]],
        local: Mapping[str, Any],
        direction: Direction = "pull",
        source_places: Places | None = None,
        target_places: Places | None = None,
        without: frozenset[int] = frozenset(),
    ) -> None:
        check_engine(engine)
        self._engine = engine
        self._layouts = source, target
        self._rank = rank
        self._direction: Direction = direction
        self._places = source_places, target_places
        self._without = ranks_of(without)
        self._plan = self._planned(self._without)
        states = (target, source) if direction == "pull" else (source, target)
        op = READ if direction == "pull" else WRITE
        self._binding = Binding(states, rank, op, local, remote)
        self._lock = threading.Lock()  # of starting
        self._run: Run | None = None
        self._stage: Stage | None = None
        self._parcels: list[Parcel] = []
        self._spare: list[Parcel] = []  # instead of a lost rank's, for the run in which it was lost
        self._steps: Steps | None = None
        self._outdated = False
        self._closed = False
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    # --------------------------------------------------------------------------------------- facts
    @property
    def plan(self) -> Plan:
        """What is carried out; after a rank was lost, the plan without it."""
        return self._plan

    @property
    def without(self) -> frozenset[int]:
        """Ranks that are not used: those that were not to be, and those that were lost since."""
        return self._without

    @property
    def closed(self) -> bool:
        return self._closed

    # ------------------------------------------------------------------------------------- running
    def run(self, deadline: float | None = None, progress: Progress | None = None) -> Report:
        """Moves everything, once, and waits for it.

        It fails with DeadlineExceeded after `deadline` seconds (default: the setting) in all,
        getting from others what a lost source did not give included. `progress(bytes_done,
        bytes_total)` is called in this thread, now and then.

        A source that is lost, or whose regions are stale, is replaced by others that hold the same;
        where there are none PeerLost or StaleRegion names the tensor and the ranks. A target cannot
        be replaced. Whatever is raised, Ctrl-C included: nothing moves any more then, what has come
        is unspecified, and another run may follow.
        """
        run = self.begin(deadline)
        try:
            if progress is None and (steps := self._at_once()) is not None:
                run.together(steps)
            return run.wait(progress)
        except BaseException:  # Ctrl-C may come between any two steps of the above
            run.abandon()
            raise

    def start(self, deadline: float | None = None) -> Run:
        """Begins a run and returns at once, with as much under way as may be in flight.

        The rest is done by the thread that waits for it: `start(deadline).wait(progress)` is
        `run`. Raises InvalidUse while the run before is not over.
        """
        run = self.begin(deadline)
        run.launch()
        return run

    def begin(self, deadline: float | None = None, *, wary: bool = False) -> Run:
        """A run of which nothing is under way yet; see Run for `wary`. Raises as `start`."""
        settings = self._engine._core.settings
        limit = check_timeout(deadline)
        seconds = settings.deadline if limit is None else limit
        with self._lock:
            if self._closed:
                raise InvalidUse("this execution is closed")
            if self._run is not None and self._run.under_way:
                raise InvalidUse("the run before is not over; wait for it, or cancel it and wait")
            self._binding.sources.check()
            if self._run is None or not self._run.complete:
                for parcel in (*self._parcels, *self._spare):
                    parcel.wait_quiet(seconds)
            if self._outdated:
                self._prepare()
            inflight = settings.reshard_inflight
            self._run = Run(self._parcels, inflight, seconds, self._replace, wary=wary)
            return self._run

    @property
    def transfers(self) -> Sequence[Prepared] | None:
        """One for each parcel, where all may be under way at once and need nothing after it; they
        are others after a rank was lost."""
        if self._outdated or any(parcel.slot is not None for parcel in self._parcels):
            return None
        total = sum(parcel.nbytes for parcel in self._parcels)
        inflight = self._engine._core.settings.reshard_inflight
        return [it.transfer for it in self._parcels] if total <= inflight else None

    def cancel(self) -> None:
        """Ends the run that is under way, from any thread: it raises Cancelled."""
        run = self._run
        if run is not None:
            run.cancel()

    def close(self) -> None:
        """Lets go of the memory; a run that is under way is cancelled. Idempotent."""
        if self._engine._foreign():  # a forked child ends: all of this is its parent's
            return
        self._closed = True
        self.cancel()
        self._run = None  # which has this: a peer that is lost must not wait for the collector
        close_all(self._parcels, self._spare)
        if self._stage is not None:
            self._stage.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._parcels)} parcels"
        return f"<Execution {self._direction} of rank {self._rank}: {state}>"

    # -------------------------------------------------------------------------------------- inside
    def _planned(self, without: frozenset[int]) -> Plan:
        source, target = self._places
        return plan(
            *self._layouts,
            self._rank,
            direction=self._direction,
            source_places=source,
            target_places=target,
            without=without,
        )

    def _prepare(self) -> None:
        """Parts for all of the plan."""
        close_all(self._parcels, self._spare)
        self._parcels = self._parcels_of(self._binding.cut(self._plan))
        self._outdated = False
        self._steps = None

    def _at_once(self) -> Steps | None:
        """All of it by one call into C, where that can be."""
        steps = self._steps
        if steps is None or not steps.done:  # a peer may have been found anew meanwhile
            transfers = self.transfers
            steps = None if transfers is None else Steps(self._engine._core, [Step(transfers)])
            self._steps = steps
        return steps

    def _parcels_of(self, cut: Cut) -> list[Parcel]:
        bound = self._binding.bind(cut)
        near, far = bound.dtypes(bound.cut)
        differ = near != far
        self._check_dtypes(bound.cut, near, far)
        straight = bound.cut.take(np.flatnonzero(~differ))
        inflight = self._engine._core.settings.reshard_inflight
        limit = min(_PARCEL_BYTES, inflight // _PARCELS_IN_FLIGHT)
        made = list(direct_parcels(self._engine, bound, straight, limit))
        if differ.any():
            converted = bound.cut.take(np.flatnonzero(differ))
            made += staged_parcels(self._staging(), bound, converted)
        return made

    def _staging(self) -> Stage:
        if self._stage is None:
            self._stage = Stage(self._engine, self._engine._core.settings.reshard_staging)
        return self._stage

    def _check_dtypes(self, cut: Cut, near: Any, far: Any) -> None:
        for dtypes in set(zip(near[near != far].tolist(), far[near != far].tolist())):
            given, wanted = dtypes[::-1] if self._direction == "pull" else dtypes
            which = np.flatnonzero((near == dtypes[0]) & (far == dtypes[1]))[:1]
            check_convertible(self._binding.near_name(cut.take(which)), given, wanted)

    def _replace(self, rank: int, missing: list[Parcel], error: TransportError) -> list[Parcel]:
        """What brings from others what these have not brought; raises where nothing can."""
        if self._direction == "push":
            raise self._lost(rank, missing, error, "")
        gone = self._without | self._lost_with(rank, error)
        try:
            self._plan = self._planned(gone)
        except LayoutError as without:
            more = f", and nobody else has it: {without}"
            raise self._lost(rank, missing, error, more) from error
        self._without, self._outdated = gone, True
        lost = [parcel.cut for parcel in missing]
        made = self._parcels_of(missing_of(self._binding.cut(self._plan), lost))
        self._spare += made
        return made

    def _lost_with(self, rank: int, error: TransportError) -> frozenset[int]:
        """The ranks that are lost with this one: those whose memory is the same engine's."""
        if not isinstance(error, PeerError):
            return frozenset((rank,))
        return self._binding.neighbours(rank)

    def _lost(
        self, rank: int, missing: Sequence[Parcel], error: TransportError, more: str
    ) -> TransportError:
        side = "target" if self._direction == "push" else "source"
        name = self._binding.near_name(missing[0].cut)
        words = f"{side} rank {rank} was lost with {name!r} under way{more} ({error})"
        if isinstance(error, PeerError):
            return PeerLost(words, peer=error.peer, op=_OPS[self._direction])
        return StaleRegion(words, op=_OPS[self._direction], status=Status.STALE)


_OPS = {"pull": "read", "push": "write"}
_PARCEL_BYTES = 64 << 20  # about what is begun, counted and repeated at a time
_PARCELS_IN_FLIGHT = 16  # at least, so that several ranks work at once
