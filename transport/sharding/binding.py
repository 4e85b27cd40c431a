"""A plan's names and numbers bound to memory: local tensors here, regions of the other ranks.

May import the engine, memory and errors, and of this room what is pure. Everything is checked here,
by name, before a byte moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from transport.engine.batch import OP_NAMES, READ, not_remote
from transport.engine.copies import Copies
from transport.engine.prepared import Sources
from transport.errors import InvalidUse, RemoteAccessError, Status
from transport.memory.dtypes import ITEMSIZES
from transport.memory.host import view
from transport.memory.layout import overlaps_itself
from transport.memory.region import Region
from transport.memory.remote import RemoteRegion
from transport.sharding.cut import cut_of, joined
from transport.sharding.strided import in_bytes, without_carries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from transport.sharding.cut import Cut
    from transport.sharding.plan import Plan
    from transport.sharding.state import StateLayout

    Names = NDArray[np.str_]
    Numbers = NDArray[np.int64]
    Shapes = Mapping[str, tuple[tuple[int, ...], str]]
    Handles = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """One tensor of one rank."""

    held: Any
    """The tensor, array, buffer or Region; for other ranks the RemoteRegion."""
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """Bytes; None: contiguous."""

    @property
    def itemsize(self) -> int:
        return ITEMSIZES[self.dtype]

    def check_target(self, which: str) -> None:
        """Raises InvalidUse where elements share bytes: what is written last would win."""
        if self.strides is not None and overlaps_itself(self.shape, self.strides, self.itemsize):
            raise InvalidUse(f"elements of {which} share bytes (an expanded tensor?)")


class Binding:
    """The memories of one rank's copies, in any plan of the same layouts.

    `near` are the local tensors, `far` the handles of the other ranks: {rank: {name: handle}}.
    Raises InvalidUse naming the tensor for what is missing, unknown, of another shape, dtype or
    size, or read-only, RemoteAccessError for handles without the right that is needed.
    """

    def __init__(
        self,
        states: tuple[StateLayout, StateLayout],
        rank: int,
        op: int,
        near: Mapping[str, Any],
        far: Handles,
    ) -> None:
        """`states` are the near side's and the far side's."""
        self.op = op
        self.rank = rank
        self._states = states
        remote: Any = far
        if not isinstance(remote, Mapping):
            kind = type(remote).__name__
            raise InvalidUse(
                f"remote handles are given as {{rank: {{name: handle}}}}, not a {kind}"
            )
        self._handles = far
        self._shapes: dict[int, Shapes] = {}  # of other ranks
        self._far: dict[tuple[int, int], Memory] = {}
        self._near = self._checked(near)
        # C looks at the regions itself.
        tensors = [it.held for it in self._near.values() if not isinstance(it.held, Region)]
        self.sources = Sources(tensors)
        """What is to be checked before each run: that no tensor was resized."""
        self._near_names = _Names()
        self._far_names = _Names()

    def cut(self, plan: Plan) -> Cut:
        """The copies of a plan, with tensors by their numbers here, the same for all plans."""
        sides = (plan.target_names, plan.source_names)
        near, far = sides if self.op == READ else sides[::-1]
        cut = cut_of(plan)
        return replace(
            cut,
            near=self._near_names.renumber(cut.near, near),
            far=self._far_names.renumber(cut.far, far),
        )

    def bind(self, cut: Cut) -> Bound:
        """Copies with the memories that they are of."""
        near = {k: self._near_memory(k) for k in np.unique(cut.near).tolist()}
        far = {key: self._far_memory(*key) for key in keys_of(cut)[0]}
        return Bound(self.op, self.sources, near, far, cut)

    def near_name(self, cut: Cut) -> str:
        """The local tensor of the first of some copies."""
        return self._near_names.names[int(cut.near[0])]

    def neighbours(self, rank: int) -> frozenset[int]:
        """The ranks whose tensors are the same engine's as this one's."""
        engines = {
            other: _right(next(iter(handles.values()))).incarnation
            for other, handles in self._handles.items()
            if handles
        }
        return frozenset(other for other in engines if engines[other] == engines[rank])

    # ------------------------------------------------------------------------------ the near side
    def _checked(self, given: Mapping[str, Any]) -> dict[str, Memory]:
        shapes = self._states[0].local_shapes(self.rank)
        _check_named(given, "the local tensors")
        unknown = [name for name in given if name not in shapes]
        if unknown:
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise InvalidUse(
                f"rank {self.rank} has no tensor {unknown[0]!r}{more} in its layout, which has"
                f" {len(shapes)} for it"
            )
        return {name: _near(name, held, shapes[name]) for name, held in given.items()}

    def _near_memory(self, number: int) -> Memory:
        name = self._near_names.names[number]
        memory = self._near.get(name)
        if memory is None:
            raise InvalidUse(f"the local tensor {name!r} of rank {self.rank} is missing")
        if self.op == READ and _readonly(memory.held):
            raise InvalidUse(f"the local tensor {name!r} is read-only; it cannot be filled")
        if self.op == READ:
            memory.check_target(f"the local tensor {name!r}")
        return memory

    # ------------------------------------------------------------------------------- the far side
    def _far_memory(self, rank: int, number: int) -> Memory:
        known = self._far.get((rank, number))
        if known is None:
            known = self._found(rank, self._far_names.names[number])
            self._far[rank, number] = known
        return known

    def _found(self, rank: int, name: str) -> Memory:
        which = f"{name!r} of rank {rank}"
        handles = self._handles.get(rank, {})
        _check_named(handles, f"the handles of rank {rank}")
        handle = handles.get(name)
        if handle is None:
            raise InvalidUse(f"there is no handle of {which}, which this rank needs")
        handle = _right(handle)
        if type(handle) is not RemoteRegion:
            raise InvalidUse(f"the handle of {which}: {not_remote(handle)}")
        if rank not in self._shapes:
            self._shapes[rank] = self._states[1].local_shapes(rank)
        if not handle._owner.rights & self.op:
            raise RemoteAccessError(
                f"the handle of {which} allows to {handle.access} only",
                op=OP_NAMES[self.op],
                status=Status.REMOTE_ACCESS,
            )
        memory = _far(which, handle, self._shapes[rank][name])
        if self.op != READ:
            memory.check_target(f"the handle of {which}")
        return memory


def _check_named(given: Any, what: str) -> None:
    if not isinstance(given, Mapping):
        raise InvalidUse(f"{what} are given by name, not as a {type(given).__name__}")


class _Names:
    """Names by number, in order of first use."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}

    def renumber(self, index: Numbers, names: Sequence[str]) -> Numbers:
        """`index` into `names`, as numbers here."""
        for name in names:
            if name not in self._numbers:
                self._numbers[name] = len(self.names)
                self.names.append(name)
        return np.array([self._numbers[name] for name in names] or [0], np.int64)[index]


class Bound:
    """Copies and their memories; makes requests of any of them."""

    def __init__(
        self,
        op: int,
        sources: Sources,
        near: Mapping[int, Memory],
        far: Mapping[tuple[int, int], Memory],
        cut: Cut,
    ) -> None:
        self.op = op
        self.sources = sources
        self.near = near  # by number of the name
        self.far = far  # by rank and number of the name
        for k, memory in near.items():
            if memory.strides is not None:
                cut = _uncarried(cut, np.flatnonzero(cut.near == k), memory, near=True)
        for (rank, k), memory in far.items():
            if memory.strides is not None:
                which = np.flatnonzero((cut.rank == rank) & (cut.far == k))
                cut = _uncarried(cut, which, memory, near=False)
        self.cut = cut

    def dtypes(self, cut: Cut) -> tuple[Names, Names]:
        """Of each copy, near and far."""
        numbers, index = np.unique(cut.near, return_inverse=True)
        near = np.array([self.near[k].dtype for k in numbers.tolist()] or [""])[index.reshape(-1)]
        keys, index = keys_of(cut)
        return near, np.array([self.far[key].dtype for key in keys] or [""])[index]

    def near_itemsize(self, cut: Cut) -> Numbers:
        """Of each copy, in bytes."""
        numbers, index = np.unique(cut.near, return_inverse=True)
        sizes = [self.near[k].itemsize for k in numbers.tolist()]
        return np.array(sizes or [1], np.int64)[index.reshape(-1)]

    def incarnation(self, cut: Cut) -> bytes:
        """The engine that has the far side of the first copy."""
        found: bytes = self.far[int(cut.rank[0]), int(cut.far[0])].held.incarnation
        return found

    def direct(self, cut: Cut) -> Copies:
        """Between the tensors here and the other ranks, without a stop."""
        return copies(self.op, cut.size, self.near_side(cut), self.far_side(cut))

    def near_side(self, cut: Cut) -> Side:
        """The local tensors' side of some copies."""
        numbers, index = np.unique(cut.near, return_inverse=True)
        memories = [self.near[k] for k in numbers.tolist()]
        return _side(memories, index, cut.near_start, cut.near_stride)

    def far_side(self, cut: Cut) -> Side:
        """The other ranks' side of some copies."""
        keys, index = keys_of(cut)
        return _side([self.far[key] for key in keys], index, cut.far_start, cut.far_stride)


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One side of Copies; see there. All numbers are bytes."""

    memories: Sequence[Any]
    index: Numbers
    start: Numbers
    strides: Numbers
    itemsize: Numbers


def copies(op: int, size: Numbers, near: Side, far: Side) -> Copies:
    """As a request: elements of `size` (n, d), which have one size in bytes on both sides."""
    return Copies(
        op,
        near.memories,
        far.memories,
        near.index,
        far.index,
        near.start,
        far.start,
        near.itemsize,
        size,
        near.strides,
        far.strides,
    )


def _side(memories: Sequence[Memory], index: Numbers, start: Numbers, stride: Numbers) -> Side:
    index = index.reshape(-1).astype(np.int64)
    itemsize = np.array([memory.itemsize for memory in memories] or [1], np.int64)[index]
    first, steps = start * itemsize, stride * itemsize[:, None]
    for k, memory in enumerate(memories):
        if memory.strides is not None:
            rows = np.flatnonzero(index == k)
            first[rows] = in_bytes(start[rows], memory.shape, memory.strides)
            steps[rows] = in_bytes(stride[rows], memory.shape, memory.strides)
    return Side([memory.held for memory in memories], index, first, steps, itemsize)


def _uncarried(cut: Cut, which: Numbers, memory: Memory, *, near: bool) -> Cut:
    if not len(which):
        return cut
    others = np.ones(len(cut), bool)
    others[which] = False
    made = without_carries(cut, which, memory.shape, near=near)
    return joined([cut.take(np.flatnonzero(others)), made])


def keys_of(cut: Cut) -> tuple[list[tuple[int, int]], Numbers]:
    """The distinct (rank, name) of the far side, and which of them each copy has."""
    many = int(cut.far.max(initial=0)) + 1
    keys, index = np.unique(cut.rank * many + cut.far, return_inverse=True)
    return [divmod(key, many) for key in keys.tolist()], index.reshape(-1)


def _near(name: str, held: Any, expected: tuple[tuple[int, ...], str]) -> Memory:
    """Checks a local tensor. A DTensor stands for its local tensor."""
    held = held.to_local() if hasattr(held, "to_local") else held
    found = held.local_view() if isinstance(held, Region) else view(held)
    strides = None if found.contiguous else tuple(found.strides)
    facts = found.dtype, tuple(found.shape), strides, found.nbytes
    return _memory(f"the local tensor {name!r}", held, facts, expected)


def _far(which: str, handle: RemoteRegion, expected: tuple[tuple[int, ...], str]) -> Memory:
    strides = None if handle.contiguous else handle.strides
    facts = handle.dtype, handle.shape, strides, handle.nbytes
    return _memory(f"the handle of {which}", handle, facts, expected)


def _memory(
    which: str,
    held: Any,
    facts: tuple[str | None, tuple[int, ...], tuple[int, ...] | None, int],
    expected: tuple[tuple[int, ...], str],
) -> Memory:
    """What has no dtype is taken for what is expected, if it is contiguous and of the size."""
    dtype, shape, strides, nbytes = facts
    wanted, kind = expected
    if dtype is None and strides is None:
        size = prod(wanted) * ITEMSIZES[kind]
        if nbytes != size:
            words = f"{which} has {nbytes} bytes; {kind}{list(wanted)} has {size}"
            raise InvalidUse(words)
    elif (dtype, shape) != (kind, wanted):
        raise InvalidUse(
            f"{which} is {dtype or 'bytes'}{list(shape)}; in its layout it is {kind}{list(wanted)}"
        )
    return Memory(held, kind, wanted, strides)


def _right(handle: Any) -> Any:
    """The handle of a region; a handle as it is."""
    return handle.remote() if isinstance(handle, Region) else handle


def _readonly(held: Any) -> bool:
    return (held.local_view() if isinstance(held, Region) else view(held)).readonly
