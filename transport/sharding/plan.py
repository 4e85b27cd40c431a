"""The copies that one rank makes so that a target layout is filled from a source layout. Pure.

May import everything of this room that is pure, memory.dtypes and errors; no engine.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from transport.errors import InvalidUse
from transport.memory.dtypes import ITEMSIZES
from transport.sharding.forms import digest
from transport.sharding.mesh import frozen
from transport.sharding.places import PROCESS, Places
from transport.sharding.planner import Planner
from transport.sharding.recent import Recent
from transport.sharding.state import StateLayout
from transport.types import format_bytes

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray


Direction = Literal["pull", "push"]


@dataclass(frozen=True, eq=False)
class Plan:
    """What one rank does: n copies between local tensors, as a struct of read-only arrays.

    source_rank, target_rank      (n,) int32; one of them is `rank` throughout
    source_tensor, target_tensor  (n,) int32: index in source_names, target_names
    size                          (n, D) elements; unused leading dimensions are 1
    source_start, target_start    (n,) first element in the local tensor, in row-major order
    source_stride, target_stride  (n, D) elements; 0 in unused dimensions
    tier                          (n,) int8: how near the source is to the target, see `places`

    The copies of one other rank follow each other. Those within the process come last. Each element
    of every target tensor's pieces is in exactly one copy of the plans of all ranks of a direction.
    """

    rank: int
    direction: Direction
    key: bytes  # digests what the plan was made from
    source_names: tuple[str, ...]
    target_names: tuple[str, ...]
    source_dtypes: tuple[str, ...]  # of each name
    target_dtypes: tuple[str, ...]
    source_rank: NDArray[np.int32]
    target_rank: NDArray[np.int32]
    source_tensor: NDArray[np.int32]
    target_tensor: NDArray[np.int32]
    size: NDArray[np.int64]
    source_start: NDArray[np.int64]
    source_stride: NDArray[np.int64]
    target_start: NDArray[np.int64]
    target_stride: NDArray[np.int64]
    tier: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.size)

    @cached_property
    def copy_bytes(self) -> NDArray[np.int64]:
        """(n,) of each copy, in the source's dtype."""
        sizes = np.array([ITEMSIZES[name] for name in self.source_dtypes], np.int64)
        return frozen(self.size.prod(axis=1) * sizes[self.source_tensor])

    @cached_property
    def nbytes(self) -> int:
        """Bytes from or to other processes, in the source's dtype."""
        return int(self.copy_bytes[self.tier > PROCESS].sum())

    @cached_property
    def total_bytes(self) -> int:
        """With those that stay in this process."""
        return int(self.copy_bytes.sum())

    @cached_property
    def bytes_by_rank(self) -> dict[int, int]:
        """Bytes by the other rank, those within this process included."""
        other = self.source_rank if self.direction == "pull" else self.target_rank
        ranks, at = np.unique(other, return_inverse=True)
        total = np.zeros(len(ranks), np.int64)
        np.add.at(total, at.ravel(), self.copy_bytes)
        return dict(zip(ranks.tolist(), total.tolist()))

    def __repr__(self) -> str:
        others = len(self.bytes_by_rank)
        side = "sources" if self.direction == "pull" else "targets"
        return (
            f"<Plan {self.direction} rank={self.rank} copies={len(self)} "
            f"{format_bytes(self.nbytes)} {side}={others}>"
        )


def plan(
    source: StateLayout,
    target: StateLayout,
    rank: int,
    *,
    direction: Direction = "pull",
    source_places: Places | None = None,
    target_places: Places | None = None,
    without: Collection[int] = frozenset(),
) -> Plan:
    """What `rank` copies so that every target rank gets its pieces of the target's tensors.

    direction      "pull": `rank` is a target rank, and reads; "push": a source rank, and writes.
                   The plans of all ranks of one direction, made from equal arguments, do it once.
    source_places, target_places  where the ranks run. What the target's own process holds is copied
                   there; then sources on its host are preferred, then on its rail.
    without        source ranks that have nothing to give, lost ones for instance. The others are
                   balanced without them.

    Tensors of the source that the target lacks are left out; dtypes may differ. Raises LayoutError
    for tensors that the source lacks, whose shapes differ, or of which nobody has what a target
    rank needs (this one, if it pulls `without` some sources), before anything is planned, and
    InvalidUse for what is no layout. A rank that takes part in none of them copies nothing: its
    plan is empty. Equal arguments give the same object for a while.
    """
    number: Any = rank
    sides: dict[str, Any] = {"source": source, "target": target}
    for side, given in sides.items():
        if not isinstance(given, StateLayout):
            kind = type(given).__name__
            raise InvalidUse(f"the {side} is a StateLayout, which names tensors, not a {kind}")
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
        raise InvalidUse(f"a rank is a whole number, not {number!r:.80}")
    if direction not in ("pull", "push"):
        raise InvalidUse(f"direction={direction!r}; it is 'pull' or 'push'")
    places = source_places, target_places
    _check_places(places)
    gone = ranks_of(without)
    facts = digest(source.key, target.key, *(p.key if p else b"" for p in places), sorted(gone))
    key = digest(facts, rank, direction)

    def planner() -> Planner:
        return Planner(source, target, *places, gone)

    def make() -> Plan:
        return _planned(_planners.get(facts, planner), rank, direction, key)

    return _plans.get(key, make)


def _check_places(places: tuple[Any, Any]) -> None:
    for side, given in zip(("source", "target"), places):
        if not isinstance(given, (Places, type(None))):
            raise InvalidUse(f"{side}_places is a Places or None, not a {type(given).__name__}")


def ranks_of(given: Any) -> frozenset[int]:
    """As `without` has them. Raises InvalidUse for what are no ranks."""
    try:
        return frozenset(map(operator.index, given))
    except TypeError:
        raise InvalidUse(f"without is a collection of ranks, not {given!r:.80}") from None


def _planned(planner: Planner, rank: int, direction: Direction, key: bytes) -> Plan:
    made = planner.copies(rank, direction)
    return Plan(rank, direction, key, **made)


_planners: Recent[Planner] = Recent(4)
_plans: Recent[Plan] = Recent(8)
