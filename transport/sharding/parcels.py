"""The parcels that a plan is carried out in: prepared transfers with one rank each.

May import the engine, binding and cut. A parcel is what is begun, counted and, when its rank is
lost, replaced as a whole.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from transport.engine.prepared import prepare
from transport.engine.submit import Options
from transport.types import Closing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from transport.engine.copies import Copies
    from transport.engine.engine import Engine
    from transport.engine.prepared import Prepared
    from transport.sharding.binding import Bound
    from transport.sharding.cut import Cut

    Numbers = NDArray[np.int64]


class Parcel(Closing):
    """Copies with one rank, straight from memory to memory."""

    __slots__ = ("bound", "cut", "nbytes", "rank", "slot", "transfer")

    def __init__(self, engine: Engine, bound: Bound, cut: Cut, nbytes: int) -> None:
        self.bound = bound
        self.cut = cut
        self.rank = int(cut.rank[0])
        self.nbytes = nbytes
        self.slot: Any = None  # of the staging memory, which only one parcel uses at a time
        self.transfer = prepared(engine, bound, bound.direct(cut))

    def start(self, deadline: float) -> None:
        """Begins; raises what Prepared.start raises."""
        self.transfer.start(deadline)

    def finish(self, deadline: float) -> None:
        """Does what is left to do here once the transfer has ended."""

    def cancel(self) -> None:
        self.transfer.cancel()

    def wait_quiet(self, timeout: float) -> bool:
        """Whether no byte of it can move any more."""
        return self.transfer.quiet or self.transfer.wait_quiet(timeout)

    def close(self) -> None:
        self.transfer.close()


def prepared(engine: Engine, bound: Bound, request: Copies) -> Prepared:
    """As Engine.prepare; but whoever runs it has checked the local tensors, all at once."""
    with engine._core as core:
        return prepare(engine, core, [request], Options(), bound.sources)


def batches(cut: Cut, nbytes: Numbers, group: Numbers, limit: int) -> Iterator[tuple[Cut, int]]:
    """Copies of one group (n,) in batches of about `limit` bytes, each with its size.

    The first batches of all groups come first, so that all work at once.
    """
    if not len(cut):
        return
    order = np.argsort(group, kind="stable")
    cut, nbytes, group = cut.take(order), nbytes[order], group[order]
    before = np.cumsum(nbytes) - nbytes
    first = np.searchsorted(group, group)
    number = (before - before[first]) // limit
    fresh = np.flatnonzero((np.diff(group) != 0) | (np.diff(number) != 0)) + 1
    bounds = np.concatenate([[0], fresh, [len(cut)]])
    for i in np.argsort(number[bounds[:-1]], kind="stable").tolist():
        few = slice(bounds[i], bounds[i + 1])
        yield cut.take(few), int(nbytes[few].sum())


def direct_parcels(engine: Engine, bound: Bound, cut: Cut, limit: int) -> Iterator[Parcel]:
    """All of it as parcels of about `limit` bytes; what is in this process comes last."""
    nbytes = cut.elements * bound.near_itemsize(cut)
    made = [
        Parcel(engine, bound, some, size) for some, size in batches(cut, nbytes, cut.rank, limit)
    ]
    own = engine.incarnation
    yield from sorted(made, key=lambda it: bound.incarnation(it.cut) == own)


def close_all(*groups: Iterable[Parcel]) -> None:
    for parcel in chain(*groups):
        parcel.close()
