"""What a reader has of a group: which versions there are, and a sync for each choice of slots.

May import engine, sharding and errors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from transport.engine.batch import Read
from transport.engine.sequence import Step, Steps
from transport.errors import DeadlineExceeded, VersionGone
from transport.sharding.execute import Execution
from transport.types import Closing
from transport.weights.source import read_slots
from transport.weights.sync import Sync, run_again
from transport.weights.word import State, decode, decode_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from transport.engine.engine import Engine
    from transport.memory.remote import RemoteRegion
    from transport.sharding.run import Progress, Report
    from transport.sharding.state import StateLayout
    from transport.weights.clock import Clock
    from transport.weights.group import Group

    Slots = tuple[int, ...]  # which slot of each source
    Handles = Mapping[str, RemoteRegion]

_PAUSES = (100e-6, 10e-3)  # seconds between looks for a version: the first, and what they grow to
_MOST_SYNCS = 16


class Choice(NamedTuple):
    """A version, and the slot of each source that holds it."""

    version: int
    slots: list[int]


class Pull(Closing):
    """Made when a group was found; what is wrong with a source ends it."""

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
        rows = zip(self._words, self._sources)
        self._look = engine.prepare([Read(it.words, row[: it.slots]) for row, it in rows])
        self._steps = Steps(engine._core, [Step([self._look])])
        self._syncs: OrderedDict[Slots, Sync] = OrderedDict()

    # ---------------------------------------------------------------------------------- one version
    def choose(self, wanted: Callable[[int], bool], newest: int | None, clock: Clock) -> Choice:
        """Waits for a version that all sources have and that is wanted: the latest one.

        `newest` is the last one that could be wanted. Raises VersionGone once no source can offer
        one, DeadlineExceeded.
        """
        pause = _PAUSES[0]
        while True:
            self._read_words(clock)
            if (found := self._in_step(wanted)) is not None:
                return found
            versions, states = decode_all(self._words)
            stable = np.where(states == State.STABLE, versions, -1)
            common = [v for v in stable[0].tolist() if v >= 0 and (stable == v).any(axis=1).all()]
            version = max((v for v in common if wanted(v)), default=None)
            if version is not None:
                return Choice(version, (stable == version).argmax(axis=1).tolist())
            if newest is not None and _gone(newest, versions, stable):
                kept = ", ".join(map(str, sorted(common))) or "none that all sources have"
                raise VersionGone(
                    f"version {newest} is not kept any more; kept now: {kept}. Fetch the latest,"
                    " or publish with a greater keep=",
                    version=newest,
                )
            if clock.passed:
                raise DeadlineExceeded(self._what_there_is(stable, clock))
            clock.pause(pause)
            pause = min(2 * pause, _PAUSES[1])

    def read(self, choice: Choice, clock: Clock, progress: Progress | None) -> Report:
        """The bytes of exactly this version. Raises VersionMoved, or what became of a source."""
        return self._sync(tuple(choice.slots)).read(choice.version, clock, progress)

    def guess(self, version: int, clock: Clock) -> Report | None:
        """The same without a choice, where every source has one slot; None where that is not what
        the sources have now, or they have not been read before."""
        if len(self._syncs) != 1 or self._words.shape[1] != 1:
            return None
        return next(iter(self._syncs.values())).guess(version, clock)

    def prepare(self, choice: Choice, clock: Clock, *, ahead: bool) -> None:
        """Plans and registers for the slots of this version; `ahead` also for those of the versions
        after it, if the publishers take turns in step. Raises LayoutError, before a byte moves.
        """
        self._cards.clock = clock
        turns = max(it.slots for it in self._sources) if ahead and not self._syncs else 1
        for step in reversed(range(turns)):
            slots = [(at + step) % it.slots for at, it in zip(choice.slots, self._sources)]
            self._sync(tuple(slots))

    def close(self) -> None:
        for sync in self._syncs.values():
            sync.close()
        self._syncs.clear()
        self._look.close()

    # -------------------------------------------------------------------------------------- inside
    def _in_step(self, wanted: Callable[[int], bool]) -> Choice | None:
        """The answer where all sources say the same, as publishers do that take turns in step."""
        first = self._words[0]
        if not (self._words == first).all():
            return None
        read = [decode(word) for word in first.tolist()]
        held = [it.version if it.state is State.STABLE else -1 for it in read]
        version = max((v for v in held if v >= 0 and wanted(v)), default=None)
        return (
            None if version is None else Choice(version, [held.index(version)] * len(self._words))
        )

    def _read_words(self, clock: Clock) -> None:
        if not self._steps.run(clock.left()):
            run_again(self._look, clock, "reading the versions")
            self._steps = Steps(self._engine._core, [Step([self._look])])

    def _sync(self, slots: Slots) -> Sync:
        found = self._syncs.pop(slots, None)
        if found is None:
            execution = Execution(
                self._engine,
                *self._states,
                self._rank,
                remote=_Slots(self._cards, [it.rank for it in self._sources], slots),
                local=self._local,
                without=self._without,
            )
            found = Sync(self._engine, self._sources, slots, execution)
        self._syncs[slots] = found
        while len(self._syncs) > _MOST_SYNCS:
            self._syncs.popitem(last=False)[1].close()
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


class _Cards:
    """Where the tensors of each rank lie; read from its publisher when it is first asked for."""

    def __init__(self, engine: Engine, group: Group, ranks: list[int]) -> None:
        self._engine = engine
        self._group = group
        self._sources = {rank: group.sources[rank] for rank in ranks}
        self._slots: dict[int, list[dict[str, RemoteRegion]]] = {}
        self.clock: Clock | None = None  # of the fetch that needs them

    def __call__(self, rank: int) -> list[dict[str, RemoteRegion]]:
        known = self._slots.get(rank)
        if known is None:
            source = self._sources[rank]
            known = self._slots[rank] = read_slots(
                self._engine, source, self._group.layout, self.clock
            )
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
