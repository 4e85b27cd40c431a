"""Where ranks run, and so which sources are near which targets. Pure; may import errors."""

from __future__ import annotations

from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from transport.errors import LayoutError

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray

PROCESS, HOST, RAIL, FAR = range(4)
"""How near a source is to a target, nearest first: the tiers of `Plan.tier`."""


class Places:
    """Where each rank of a group runs: item r of each sequence is rank r's. Immutable.

    - `process` names its process; ranks of both groups with equal names share memory, so that
      nothing needs to be sent between them.
    - `host` names its machine; a source on the target's host is preferred.
    - `rail` names the network plane of its NIC; after that, one on the target's rail is preferred.

    The names are any hashable values with a stable `repr` (strings, numbers, tuples of them), for
    the plans of all ranks must agree. None is nowhere near anybody.
    """

    __slots__ = ("__dict__", "host", "process", "rail")

    def __init__(
        self,
        process: Sequence[Hashable],
        host: Sequence[Hashable] | None = None,
        rail: Sequence[Hashable] | None = None,
    ) -> None:
        self.process = tuple(process)
        nowhere = (None,) * len(self.process)
        self.host: tuple[Hashable, ...] = nowhere if host is None else tuple(host)
        self.rail: tuple[Hashable, ...] = nowhere if rail is None else tuple(rail)
        if not len(self.process) == len(self.host) == len(self.rail):
            raise LayoutError("process, host and rail have one item per rank each")

    @classmethod
    def apart(cls, ranks: int) -> Places:
        """Nobody shares anything with anybody."""
        return cls((None,) * ranks)

    @cached_property
    def key(self) -> bytes:
        """A digest of the content."""
        text = repr((self.process, self.host, self.rail))
        return blake2b(text.encode(), digest_size=16).digest()

    def __len__(self) -> int:
        return len(self.process)

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, Places) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> tuple[Any, ...]:
        return Places, (self.process, self.host, self.rail)

    def __repr__(self) -> str:
        return f"<Places ranks={len(self)} hosts={len(set(self.host))}>"


class Zones:
    """The targets sorted by what is near them. Targets of one zone see all sources alike.

    zone (target ranks,)           the zone of each target rank
    tier (zones, source ranks)     int8: how near each source is to the targets of a zone
    """

    __slots__ = ("tier", "zone")

    zone: NDArray[np.int64]
    tier: NDArray[np.int8]

    def __init__(
        self, source: Places | None, target: Places | None, source_ranks: int, target_ranks: int
    ) -> None:
        _check(source, source_ranks, "source")
        _check(target, target_ranks, "target")
        self.zone = np.zeros(target_ranks, np.int64)
        rows = [np.full(source_ranks, FAR, np.int8)]
        if source is not None and target is not None:
            near = _Near(source, source_ranks)
            known: dict[tuple[Any, ...], int] = {(None, None, None): 0}
            for rank in range(target_ranks):
                place = near.place(target, rank)
                zone = known.setdefault(place, len(known))
                if zone == len(rows):
                    rows.append(near.tiers(place))
                self.zone[rank] = zone
        self.tier = np.stack(rows)


class _Near:
    """The source ranks by process, host and rail."""

    def __init__(self, source: Places, ranks: int) -> None:
        self._ranks = ranks
        names = (source.rail[:ranks], source.host[:ranks], source.process[:ranks])
        self._at = [_index(level) for level in names]

    def place(self, target: Places, rank: int) -> tuple[Any, ...]:
        """What a target shares with any source; None in place of what it does not."""
        own = (target.rail[rank], target.host[rank], target.process[rank])
        return tuple(name if name in level else None for name, level in zip(own, self._at))

    def tiers(self, place: tuple[Any, ...]) -> NDArray[np.int8]:
        row = np.full(self._ranks, FAR, np.int8)
        for name, level, tier in zip(place, self._at, (RAIL, HOST, PROCESS)):
            row[level.get(name, [])] = tier
        return row


def _index(names: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    found: dict[Hashable, list[int]] = {}
    for rank, name in enumerate(names):
        if name is not None:
            found.setdefault(name, []).append(rank)
    return found


def _check(places: Places | None, ranks: int, group: str) -> None:
    if places is not None and len(places) < ranks:
        raise LayoutError(
            f"{group}_places tells of {len(places)} ranks, but the layouts name rank {ranks - 1}"
        )
