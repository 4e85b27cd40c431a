"""Memory where elements stop on their way to another dtype, or to where they lie apart.

May import the engine, binding, parcels, cut and convert. It is bounded, and cut into slots; a
parcel has one of them for as long as it is under way. No Python touches one tensor: what was read
is converted a slot at a time, and C gathers and scatters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transport.engine.batch import READ, WRITE
from transport.memory.dtypes import ITEMSIZES
from transport.sharding.binding import Side, copies
from transport.sharding.convert import converter
from transport.sharding.cut import divided
from transport.sharding.parcels import Parcel, batches, prepared
from transport.types import Closing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from transport.engine.engine import Engine
    from transport.sharding.binding import Bound
    from transport.sharding.cut import Cut

    Numbers = NDArray[np.int64]

_SLOTS = 8
_ALIGNMENT = 64  # bytes; more than any element's


class Stage(Closing):
    """Staging memory of an engine: slots of two halves, before and after the conversion."""

    def __init__(self, engine: Engine, nbytes: int) -> None:
        self.half = max(nbytes // _SLOTS // 2 // _ALIGNMENT * _ALIGNMENT, _ALIGNMENT)
        self.engine = engine
        self.memory: Any = engine.empty(_SLOTS * 2 * self.half, "uint8")
        self.region = engine.register(self.memory)
        self._next = 0

    def slot(self) -> Slot:
        """The next one, in turn."""
        number, self._next = self._next, (self._next + 1) % _SLOTS
        return Slot(self, number)

    def close(self) -> None:
        self.region.close()


class Slot:
    """Where a parcel's elements stop. Slots of one number are one memory."""

    __slots__ = ("number", "stage")

    def __init__(self, stage: Stage, number: int) -> None:
        self.stage = stage
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Slot) and (self.stage, self.number) == (other.stage, other.number)

    def __hash__(self) -> int:
        return hash(self.number)

    def offset(self, half: int) -> int:
        return (2 * self.number + half) * self.stage.half

    def buffer(self, half: int, nbytes: int) -> NDArray[np.uint8]:
        start = self.offset(half)
        found: NDArray[np.uint8] = self.stage.memory[start : start + nbytes]
        return found


class StagedParcel(Parcel):
    """Copies with one rank and of one pair of dtypes, which stop in a slot.

    Reading: from the rank to the slot, converted there, scattered. Writing: the other way round.
    """

    __slots__ = ("_convert", "_here")

    def __init__(self, stage: Stage, bound: Bound, cut: Cut, dtypes: Sequence[str]) -> None:
        engine = stage.engine
        self.bound = bound
        self.cut = cut
        self.rank = int(cut.rank[0])
        self.slot = slot = stage.slot()
        near, far = dtypes
        elements = int(cut.elements.sum())
        self.nbytes = elements * ITEMSIZES[far]
        # The far elements have the first half, the near ones the second, or the same where they
        # are of one dtype.
        second = 0 if near == far else 1
        remote = stage.region.remote()
        outside = _packed(slot, 0, far, cut, stage.region), bound.far_side(cut)
        inside = bound.near_side(cut), _packed(slot, second, near, cut, remote)
        self.transfer = prepared(engine, bound, copies(bound.op, cut.size, *outside))
        self._here = prepared(engine, bound, copies(bound.op, cut.size, *inside))
        self._convert: Any = None
        if second:
            first = slot.buffer(0, self.nbytes), slot.buffer(1, elements * ITEMSIZES[near])
            given, wanted = (far, near) if bound.op == READ else (near, far)
            sides = first if bound.op == READ else first[::-1]
            convert = converter(given, wanted)
            self._convert = lambda: convert(*sides)

    def start(self, deadline: float) -> None:
        if self.bound.op == WRITE:
            self._move_here(deadline)
            if self._convert is not None:
                self._convert()
        self.transfer.start(deadline)

    def finish(self, deadline: float) -> None:
        if self.bound.op == READ:
            if self._convert is not None:
                self._convert()
            self._move_here(deadline)

    def cancel(self) -> None:
        self.transfer.cancel()
        self._here.cancel()

    def wait_quiet(self, timeout: float) -> bool:
        return super().wait_quiet(timeout) and (self._here.quiet or self._here.wait_quiet(timeout))

    def close(self) -> None:
        self.transfer.close()
        self._here.close()

    def _move_here(self, deadline: float) -> None:
        self._here.start(deadline).wait()


def staged_parcels(stage: Stage, bound: Bound, cut: Cut) -> Iterator[StagedParcel]:
    """All of it as parcels that fit into a slot."""
    if not len(cut):
        return
    near, far = bound.dtypes(cut)
    pairs = np.char.add(np.char.add(near, " "), far)
    for pair in np.unique(pairs).tolist():
        dtypes = pair.split()
        size = max(ITEMSIZES[dtype] for dtype in dtypes)
        # A batch may be over by as much as its last copy has: half the room for each.
        limit = max(stage.half // 2 // size, 1)
        few = divided(cut.take(np.flatnonzero(pairs == pair)), limit)
        for some, _ in batches(few, few.elements, few.rank, limit):
            yield StagedParcel(stage, bound, some, dtypes)


def _packed(slot: Slot, half: int, dtype: str, cut: Cut, memory: Any) -> Side:
    """One side of copies that lie one after another in a slot, each in row-major order."""
    elements, itemsize = cut.elements, ITEMSIZES[dtype]
    inner = np.ones_like(cut.size)
    inner[:, :-1] = np.cumprod(cut.size[:, :0:-1], axis=1)[:, ::-1]
    start = slot.offset(half) + (np.cumsum(elements) - elements) * itemsize
    none = np.zeros(len(cut), np.int64)
    return Side([memory], none, start, inner * itemsize, none + itemsize)
