"""An execution bound to the sources of a group: their words, their seats, their slots.

May import engine, sharding and errors.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from transport.engine.batch import Read, Write
from transport.errors import DeadlineExceeded, TransportError, VersionGone, VersionMoved
from transport.sharding.execute import Execution
from transport.types import Closing
from transport.weights.clock import Clock
from transport.weights.seats import said
from transport.weights.source import read_slots
from transport.weights.word import State, decode_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from transport.engine.engine import Engine
    from transport.engine.prepared import Prepared
    from transport.memory.remote import RemoteRegion
    from transport.sharding.run import Progress, Report
    from transport.sharding.state import StateLayout
    from transport.weights.group import Group

    Slots = tuple[int, ...]  # which slot of each source
    Handles = Mapping[str, RemoteRegion]

_PAUSES = (100e-6, 10e-3)  # seconds between looks for a version: the first, and what they grow to
_MOST_EXECUTIONS = 16
_LEAVING = 5.0  # seconds for what must be done when the time is over


class Choice(NamedTuple):
    """A version, and the slot of each source that holds it."""

    version: int
    slots: list[int]


class Pull(Closing):
    """What is done at each sync: look, say what is read, look again, read, look."""

    def __init__(
        self,
        engine: Engine,
        group: Group,
        target: StateLayout,
        rank: int,
        local: Mapping[str, Any],
        without: frozenset[int],
    ) -> None:
        self._engine = engine
        self._states = group.layout, target
        self._rank = rank
        self._local = local
        self._without = without
        used = sorted(group.sources.keys() - without)
        self._sources = [group.sources[each] for each in used]
        self._cards = _Cards(engine, group, used)
        most = max(source.slots for source in self._sources)
        self._words = np.zeros((len(self._sources), most), np.uint64)
        self._said = np.zeros(1, np.uint64)
        rows = zip(self._words, self._sources)
        self._look = engine.prepare([Read(it.words, row[: it.slots]) for row, it in rows])
        self._say = engine.prepare([Write(self._said, it.seat) for it in self._sources])
        self._executions: OrderedDict[Slots, Execution] = OrderedDict()

    # ---------------------------------------------------------------------------------- one version
    def choose(self, wanted: Callable[[int], bool], newest: int | None, clock: Clock) -> Choice:
        """Waits for a version that all sources have and that is wanted: the latest one.

        `newest` is the last one that could be wanted. Raises VersionGone once no source can offer
        one, DeadlineExceeded.
        """
        pause = _PAUSES[0]
        while True:
            versions, states = self._read_words(clock)
            stable = np.where(states == State.STABLE, versions, -1)
            common = [v for v in stable[0].tolist() if v >= 0 and (stable == v).any(axis=1).all()]
            found = max((v for v in common if wanted(v)), default=None)
            if found is not None:
                return Choice(found, (stable == found).argmax(axis=1).tolist())
            if newest is not None and _gone(newest, versions, stable):
                raise VersionGone(f"version {newest} is not kept any more", version=newest)
            if clock.passed:
                raise DeadlineExceeded(self._what_there_is(stable, clock))
            clock.pause(pause)
            pause = min(2 * pause, _PAUSES[1])

    def read(self, choice: Choice, clock: Clock, progress: Progress | None) -> Report:
        """The bytes of exactly this version. Raises VersionMoved, or what became of a source."""
        execution = self._execution(tuple(choice.slots))
        self._take_seats(said(choice.version), clock)
        try:
            # Who closes the version waits for us, unless he had looked before we sat down.
            self._check(choice, clock)
            report = execution.run(clock.left(), progress)
            self._check(choice, clock)
        finally:
            # Also when the time is over: a seat that stays taken holds a publisher up.
            with contextlib.suppress(TransportError):  # it would hide why this ends
                self._take_seats(0, Clock(_LEAVING, _LEAVING))
        return report

    def prepare(self, choice: Choice, *, ahead: bool) -> None:
        """Plans and registers for the slots of this version; `ahead` also for those of the versions
        after it, if the publishers take turns in step. Raises LayoutError, before a byte moves.
        """
        turns = max(it.slots for it in self._sources) if ahead and not self._executions else 1
        for step in reversed(range(turns)):
            slots = [(at + step) % it.slots for at, it in zip(choice.slots, self._sources)]
            self._execution(tuple(slots))

    def close(self) -> None:
        for execution in self._executions.values():
            execution.close()
        self._executions.clear()
        self._look.close()
        self._say.close()

    # -------------------------------------------------------------------------------------- inside
    def _read_words(self, clock: Clock) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        _run(self._look, clock, "reading the versions")
        return decode_all(self._words)

    def _take_seats(self, value: int, clock: Clock) -> None:
        self._said[0] = value
        _run(self._say, clock, "telling the publishers what is read")

    def _check(self, choice: Choice, clock: Clock) -> None:
        """Raises VersionMoved unless all sources have the version still."""
        versions, states = self._read_words(clock)
        rows = np.arange(len(self._sources)), choice.slots
        same = (versions[rows] == choice.version) & (states[rows] != State.WRITING)
        if not same.all():
            source = self._sources[int(same.argmin())]
            raise VersionMoved(
                f"rank {source.rank} at {source.address} left version {choice.version} while it was"
                " being read",
                version=choice.version,
            )

    def _execution(self, slots: Slots) -> Execution:
        found = self._executions.pop(slots, None)
        if found is None:
            found = Execution(
                self._engine,
                *self._states,
                self._rank,
                remote=_Slots(self._cards, [it.rank for it in self._sources], slots),
                local=self._local,
                without=self._without,
            )
        self._executions[slots] = found
        while len(self._executions) > _MOST_EXECUTIONS:
            self._executions.popitem(last=False)[1].close()
        return found

    def _what_there_is(self, stable: NDArray[np.int64], clock: Clock) -> str:
        latest = stable.max(axis=1)
        rank = self._sources[int(latest.argmin())].rank
        low, high = int(latest.min()), int(latest.max())
        at = f"version {low}" if low >= 0 else "no version"
        ahead = f", others at up to version {high}" if high > low else ""
        return (
            f"all sources together had no version that was asked for within {clock.limit:g} s:"
            f" rank {rank} is at {at}{ahead}"
        )


def _gone(version: int, versions: NDArray[np.int64], stable: NDArray[np.int64]) -> bool:
    """Whether some source has newer ones and no longer this."""
    newer = (versions > version).any(axis=1)
    return bool((newer & ~(stable == version).any(axis=1)).any())


def _run(prepared: Prepared, clock: Clock, doing: str) -> None:
    try:
        prepared.run(timeout=clock.left())
    except TimeoutError:
        prepared.cancel()
        prepared.wait_quiet(_LEAVING)  # so that it can be run again
        raise DeadlineExceeded(f"{doing} took more than {clock.limit:g} s") from None


class _Cards:
    """Where the tensors of each rank lie; read from its publisher when it is first asked for."""

    def __init__(self, engine: Engine, group: Group, ranks: list[int]) -> None:
        self._engine = engine
        self._group = group
        self._sources = {rank: group.sources[rank] for rank in ranks}
        self._slots: dict[int, list[dict[str, RemoteRegion]]] = {}

    def __call__(self, rank: int) -> list[dict[str, RemoteRegion]]:
        known = self._slots.get(rank)
        if known is None:
            source = self._sources[rank]
            known = self._slots[rank] = read_slots(self._engine, source, self._group.layout)
        return known


class _Slots(Mapping[int, "Handles"]):
    """{rank: handles} of one slot of each."""

    def __init__(self, cards: _Cards, ranks: list[int], slots: Slots) -> None:
        self._cards = cards
        self._slots = dict(zip(ranks, slots))

    def __getitem__(self, rank: int) -> Handles:
        return self._cards(rank)[self._slots[rank]]

    def __iter__(self) -> Iterator[int]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)
