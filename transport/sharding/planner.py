"""Plans for any rank between two state layouts; what they have in common is worked out once. Pure.

May import lines, pairs, parts and places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transport.sharding.copies import Copies
from transport.sharding.lines import Lines
from transport.sharding.pairs import check_cover, pairs
from transport.sharding.parts import Part, of_source, of_target, part
from transport.sharding.places import PROCESS, Places, Zones

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.sharding.boxes import Ints
    from transport.sharding.state import StateLayout


class Planner:
    """Two state layouts, where their ranks run, and which source ranks are gone."""

    def __init__(
        self,
        source: StateLayout,
        target: StateLayout,
        source_places: Places | None,
        target_places: Places | None,
        without: frozenset[int] = frozenset(),
    ) -> None:
        self._ranks = _count(source), _count(target)
        zones = Zones(source_places, target_places, *self._ranks)
        self._pairs = pairs(source, target, without)
        self._without = without
        self.lines = Lines(self._pairs, zones)

    def copies(self, rank: int, direction: str) -> dict[str, Any]:
        """The arrays of a Plan by name. Raises LayoutError where lost sources had what it needs."""
        pull = direction == "pull"
        for pair in self._pairs if self._without else ():
            check_cover(pair, rank if pull else None, self._without)
        found = of_target(self.lines, rank) if pull else of_source(self.lines, rank)
        parts = [
            one
            for rows in found
            for one in part(self.lines, rows, None if pull else rank)
            if len(one.tensor)
        ]
        return self._packed(parts, self._turned(rank, pull))

    def _turned(self, rank: int, pull: bool) -> Callable[[Ints, Ints, Any], Ints]:
        """Numbers the other side's ranks from a place on that depends on this one.

        If all began with the first, they would wait for it while the last has nothing to do.
        """
        others, own = self._ranks if pull else self._ranks[::-1]
        first = rank * others // max(own, 1)

        def turn(source: Ints, target: Ints, tier: Any) -> Ints:
            other = ((source if pull else target) - first) % max(others, 1)
            return np.where(tier == PROCESS, other + others, other)

        return turn

    def _packed(self, parts: list[Part], turn: Callable[[Ints, Ints, Any], Ints]) -> dict[str, Any]:
        dims = max((one.copies.size.shape[1] for one in parts), default=1)
        kinds = np.cumsum([0, *(len(one.item) for one in parts)]).tolist()
        kind = _joined([one.kind + first for one, first in zip(parts, kinds)])
        source = _joined([one.pair.held.rank[one.item] for one in parts])
        target = _joined([one.pair.wanted.pieces.rank[one.piece] for one in parts])
        tier = self.lines.zones.tier[self.lines.zones.zone[target], source]
        place = turn(source, target, tier)
        small = place.astype(np.uint16) if 2 * max(self._ranks) < 1 << 16 else place
        order = np.argsort(small[kind], kind="stable")  # by radix where the numbers are small
        kind = kind[order]
        made: dict[str, Any] = {
            "source_rank": source.astype(np.int32)[kind],
            "target_rank": target.astype(np.int32)[kind],
            "tier": tier[kind],
        }
        wide = [one.copies.widened(dims) for one in parts]
        for field in Copies._fields:
            columns = [getattr(one, field) for one in wide]
            empty = np.zeros((0, dims) if field == "size" or "stride" in field else 0, np.int64)
            made[field] = np.concatenate(columns or [empty])[kind]
        names = [_Names(parts, at_source) for at_source in (True, False)]
        for side, name in zip(("source", "target"), names):
            made[f"{side}_tensor"] = name.index[order]
        for array in made.values():
            array.flags.writeable = False
        for side, name in zip(("source", "target"), names):
            made[f"{side}_names"] = name.names
            made[f"{side}_dtypes"] = name.dtypes
        return made


class _Names:
    """The local tensors of one side that are used, and which of them each copy is of."""

    def __init__(self, parts: list[Part], at_source: bool) -> None:
        places: dict[str, int] = {}
        dtypes: list[str] = []
        index: list[Ints] = []
        known: dict[int, Ints] = {}
        for one in parts:
            row = known.get(id(one.pair))
            if row is None:
                pair = one.pair
                names = pair.at_source if at_source else pair.at_target
                row = np.array([places.setdefault(name, len(places)) for name in names])
                known[id(pair)] = row
                dtype = (pair.source if at_source else pair.target).dtype
                dtypes += [dtype] * (len(places) - len(dtypes))
            index.append(row[one.tensor])
        self.names = tuple(places)
        self.dtypes = tuple(dtypes)
        self.index = _joined(index).astype(np.int32)


def _joined(arrays: list[Ints]) -> Ints:
    return np.concatenate(arrays or [np.zeros(0, np.int64)])


def _count(state: StateLayout) -> int:
    return state.ranks[-1] + 1 if state.ranks else 0
