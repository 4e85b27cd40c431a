"""One run of a plan: what is begun when, until all has come, and by whom when a source is lost.

May import parcels, errors and types. Only the thread that waits drives it: what fits into the limit
of bytes in flight is begun at once, the rest as others end.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transport.errors import (
    Cancelled,
    DeadlineExceeded,
    PeerError,
    RemoteAccessError,
    StaleRegion,
    Status,
    TransportError,
)
from transport.types import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from transport.engine.sequence import Steps
    from transport.sharding.parcels import Parcel

    Progress = Callable[[int, int], object]
    # What comes instead of these parcels of a lost rank; raises where nothing can.
    Replace = Callable[[int, list[Parcel], TransportError], Sequence[Parcel]]

LOST = (PeerError, StaleRegion, RemoteAccessError)
"""What a transfer raises when its rank can no longer be used: a NIC tells a closed region only as a
refusal, and rights and ranges were checked before."""

_BOTH = (True, False)
_LOOK = 0.002  # seconds that one parcel is waited for while others may end
_PATIENCE = 5.0  # seconds for cancelled transfers to become quiet


@dataclass(frozen=True, slots=True)
class Report:
    """What one run did."""

    bytes: int
    """That were moved, copies within this process included; as they are at the other ranks."""
    seconds: float
    """From its beginning to its end, by CLOCK_MONOTONIC."""
    carried: Mapping[str, int]
    """Bytes by provider and path: {"shm (mapped)": 4096}."""
    ranks: tuple[int, ...]
    """Whose memory was read, or written to."""
    lost: tuple[int, ...]
    """Ranks that were lost on the way; others brought what was missing."""

    def __str__(self) -> str:
        lost = f"; lost on the way: rank {', '.join(map(str, self.lost))}" if self.lost else ""
        ranks = f"{len(self.ranks)} rank{'s' * (len(self.ranks) != 1)}"
        return f"{moved(self.bytes, self.seconds, self.carried)}, {ranks}{lost}"


def moved(nbytes: int, seconds: float, carried: Mapping[str, int]) -> str:
    """For people: "88 MiB in 5.1 ms (18 GB/s) by shm (mapped)"."""
    rate = f" ({nbytes / seconds / 1e9:.3g} GB/s)" if seconds else ""
    how = f" by {', '.join(carried)}" if carried else ""
    return f"{format_bytes(nbytes)} in {seconds * 1e3:.3g} ms{rate}{how}"


class Run:
    """A plan that is being carried out once. Made by `Execution.start`.

    With `wary` nothing is kept of what a lost source has given: others bring that, too.
    """

    def __init__(
        self,
        parcels: Sequence[Parcel],
        limit: int,
        seconds: float,
        replace: Replace,
        *,
        wary: bool = False,
    ) -> None:
        # Those that stop in staging memory on the way wait for room there, and hold up no others.
        self._queues = tuple(
            deque(parcel for parcel in parcels if bool(parcel.slot) is staged) for staged in _BOTH
        )
        self._flying: list[Parcel] = []
        self._slots: set[object] = set()  # of the staging memory, those in use
        self._limit = limit
        self._began = time.monotonic()
        self._end = self._began + seconds
        self._replace = replace
        self._total = sum(parcel.nbytes for parcel in parcels)
        self._moved = 0
        self._landed: list[Parcel] | None = [] if wary else None
        self._steps: Steps | None = None
        self._touched = False  # whether anything of it may have begun
        self._complete = False
        self._in_flight = 0
        self._cancelled = False
        self._carried: dict[str, int] = {}
        self._ranks: set[int] = set()
        self._lost_ranks: dict[int, None] = {}

    def __repr__(self) -> str:
        state = "cancelled" if self._cancelled else "over" if self.over else "under way"
        return f"<Run {state}: {self._moved} of {self._total} bytes>"

    @property
    def over(self) -> bool:
        """Whether nothing is left to be done."""
        return not (self._flying or any(self._queues))

    @property
    def under_way(self) -> bool:
        """Not where Ctrl-C came before whoever made it could do anything with it."""
        return self._touched and not self.over

    @property
    def complete(self) -> bool:
        """Whether all has come, so that nothing can move any more."""
        return self._complete

    def wait(self, progress: Progress | None = None) -> Report:
        """Does the rest, in this thread. Raises what went wrong, once nothing moves any more."""
        self._touched = True
        try:
            while not self.over:
                self._check()
                self.launch()
                if self._flying:
                    self._reap(self._next_done(), progress)
            self._check()
        except BaseException:
            self.abandon()
            raise
        seconds = time.monotonic() - self._began
        self._complete = not self._lost_ranks
        ranks, lost = tuple(sorted(self._ranks)), tuple(self._lost_ranks)
        return Report(sum(self._carried.values()), seconds, dict(self._carried), ranks, lost)

    def together(self, steps: Steps, at: int = 0) -> int:
        """Begins it as step `at` of what C does in one go, and returns how many steps are done.

        Where all parcels fit in flight. Follow it by `wait`, which goes on where that has stopped.
        """
        self._touched = True
        direct = self._queues[_BOTH.index(False)]
        self._flying.extend(direct)  # for who cancels it meanwhile
        self._in_flight = self._total
        direct.clear()
        self._steps = steps
        try:
            steps.run(self._left())
        except BaseException:
            self.abandon()
            raise
        flying, begun = self._flying, steps.begun if steps.at == at else 0
        if steps.at > at:
            self._flying = []
            for parcel in flying:
                self._count(parcel)
        else:
            self._flying = flying[:begun]
            direct.extend(flying[begun:])
        self._in_flight = sum(parcel.nbytes for parcel in self._flying)
        return steps.at

    def cancel(self) -> None:
        """Any thread may; the one that waits raises Cancelled then."""
        self._cancelled = True
        if self._steps is not None:
            self._steps.stopped = True
        for parcel in list(self._flying):
            parcel.cancel()

    def abandon(self) -> None:
        """Cancels what is under way and waits, for a while, until none of it can move a byte."""
        for queue in self._queues:
            queue.clear()
        for parcel in self._flying:
            parcel.cancel()
        end = time.monotonic() + _PATIENCE
        for parcel in self._flying:
            parcel.wait_quiet(max(end - time.monotonic(), 0.0))
        self._flying.clear()

    def launch(self) -> None:
        """Begins as much as may be in flight at a time."""
        self._touched = True
        try:
            for queue in self._queues:
                while queue and not self._cancelled and self._fits(queue[0]):
                    self._begin(queue.popleft())
        except BaseException:
            self.abandon()
            raise

    # -------------------------------------------------------------------------------------- inside
    def _begin(self, parcel: Parcel) -> None:
        self._flying.append(parcel)  # before: Ctrl-C may come right after it has begun
        self._in_flight += parcel.nbytes
        self._slots.add(parcel.slot)
        try:
            parcel.start(self._left())
        except LOST as error:
            self._lose(parcel, error)
        if self._cancelled:  # by another thread, which may not have seen this parcel
            parcel.cancel()

    def _check(self) -> None:
        if self._cancelled:
            raise Cancelled("the run was cancelled", status=Status.CANCELLED)

    def _left(self) -> float:
        """Seconds. Raises DeadlineExceeded where there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            words = f"{self._moved} of {self._total} bytes had come when the deadline passed"
            raise DeadlineExceeded(words, status=Status.DEADLINE)
        return left

    def _fits(self, parcel: Parcel) -> bool:
        if parcel.slot is not None and parcel.slot in self._slots:
            return False
        return not self._flying or self._in_flight + parcel.nbytes <= self._limit

    def _next_done(self) -> Parcel:
        """A parcel that has ended; waits for one."""
        while True:
            for parcel in self._flying:
                if parcel.transfer.done:
                    return parcel
            idle = self._flying[0].slot is None and not any(self._queues)
            with contextlib.suppress(TransportError, TimeoutError):
                self._flying[0].transfer.wait(None if idle else _LOOK)
            self._left()

    def _reap(self, parcel: Parcel, progress: Progress | None) -> None:
        try:
            parcel.transfer.wait(0)
        except LOST as error:
            self._lose(parcel, error)
            return
        parcel.finish(self._left())
        self._land(parcel)
        self._count(parcel)
        if progress is not None:
            progress(self._moved, self._total)

    def _count(self, parcel: Parcel) -> None:
        if self._landed is not None:
            self._landed.append(parcel)
        how = parcel.transfer.way
        self._carried[how] = self._carried.get(how, 0) + parcel.nbytes
        self._ranks.add(parcel.rank)
        self._moved = min(self._moved + parcel.nbytes, self._total)

    def _land(self, parcel: Parcel) -> None:
        self._flying.remove(parcel)
        self._slots.discard(parcel.slot)
        self._in_flight -= parcel.nbytes

    def _lose(self, parcel: Parcel, error: TransportError) -> None:
        """All that has not come from the parcel's rank is to come from others."""
        missing = [it for it in self._flying if it.rank == parcel.rank]
        for it in missing:
            it.cancel()
        for it in missing:
            it.wait_quiet(self._left())  # late bytes must not come after those of another
            self._land(it)
        for queue in self._queues:
            missing += [it for it in queue if it.rank == parcel.rank]
            others = [it for it in queue if it.rank != parcel.rank]
            queue.clear()
            queue.extend(others)
        missing += [it for it in self._landed or () if it.rank == parcel.rank]
        self._lost_ranks[parcel.rank] = None
        for it in self._replace(parcel.rank, missing, error):
            self._queues[_BOTH.index(bool(it.slot))].append(it)
