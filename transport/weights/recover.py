"""The state of a lost rank, back from the peers that hold the same.

May import engine, sharding and errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transport.errors import LayoutError
from transport.sharding.forms import Table, digest
from transport.sharding.layout import Layout
from transport.sharding.mesh import frozen
from transport.sharding.state import Entry, StateLayout
from transport.weights.local import tensors_of
from transport.weights.subscription import Subscription

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from transport.engine.engine import Engine
    from transport.sharding.run import Progress
    from transport.weights.subscription import Fetched, Version


def recover(
    engine: Engine,
    name: str,
    into: Any,
    sources: Iterable[str],
    *,
    rank: int,
    version: Version = "latest",
    deadline: float | None = None,
    progress: Progress | None = None,
) -> Fetched:
    """Fills a replacement's tensors with what rank `rank` of a published group holds.

    `sources` are the addresses of its living peers; `into` has the tensors of the lost rank, which
    overwrites all of them. Every byte comes from one of the peers that hold it, from all of these
    at once, and they go on working: with `mode="snapshot"` their next versions do not disturb.
    Raises what `fetch` raises, LayoutError where nobody else has some of it (naming tensor and
    ranks).
    """
    tensors = tensors_of(into)

    def receive(group: StateLayout) -> tuple[StateLayout, Mapping[str, Any]]:
        return alone(group, rank), tensors

    with Subscription(
        engine, name, sources, receive, rank, without=(rank,), ahead=False
    ) as subscription:
        return subscription.fetch(version, deadline=deadline, progress=progress)


def alone(group: StateLayout, rank: int) -> StateLayout:
    """The layout of a group as if nobody but `rank` were in it: the others need nothing, so that
    its part is shared out among all who can give it. Raises LayoutError for a rank that has none.
    """
    if rank not in group.ranks:
        raise LayoutError(f"rank {rank} takes no part in the layout; ranks {group.ranks} do")
    made: dict[int, Layout] = {}
    entries: dict[str, Entry] = {}
    for name, entry in group.items():
        base = entry.layout
        if not np.isin(rank, base.ranks):
            continue
        layout = made.get(id(base))
        if layout is None:
            layout = made[id(base)] = Layout(base.shape, base.dtype, _Alone(base, rank))
        entries[name] = Entry(layout, entry.tensor)
    return StateLayout(entries)


class _Alone:
    """What one rank has of another layout. It stays in this process: no peer is told of it."""

    def __init__(self, base: Layout, rank: int) -> None:
        self._base = base
        self._rank = rank
        self.key = digest("alone", base.key, rank)

    def table(self, shape: tuple[int, ...]) -> Table:
        del shape
        table, rank = self._base.table, self._rank
        row = int(np.searchsorted(table.ranks, rank))
        ranks, local = table.ranks[row : row + 1], table.local_shapes[row : row + 1]
        return Table(frozen(ranks), frozen(local), table.pieces.of(rank))

    def __repr__(self) -> str:
        return f"rank {self._rank} alone of {self._base!r}"
