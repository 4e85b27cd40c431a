"""Which replica sends which byte, agreed on by all ranks without a word. Pure.

May import balance, boxes, pairs, places and sides.

All bytes that the same sources may send to targets which see these sources alike form a *class*.
In a class the bytes of all targets, tensors and boxes follow one another on a *line*, in an order
that every rank knows. `balance` says how much of a line each source sends; that many bytes in a row
are its. So a rank needs to know where its own bytes lie on the lines, and nothing of other ranks'
plans. Bytes that one source alone holds are on no line: who sends them is not a question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from transport.sharding.balance import spread
from transport.sharding.boxes import ranges
from transport.sharding.places import PROCESS, Zones

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from transport.sharding.boxes import Ints
    from transport.sharding.pairs import Pair
    from transport.sharding.sides import Held, Wanted


class Columns(NamedTuple):
    """The pieces of a target layout by box and zone, sorted so; box b has columns first[b] ..."""

    first: Ints  # (boxes + 1,)
    zone: Ints  # (columns,)
    column: Ints  # (pieces,)

    def expand(self, pair: Pair) -> tuple[Ints, Ints]:
        """Rows of (overlap, column): every overlap with every column of its box."""
        count = np.diff(self.first)
        if len(self.zone) == len(count):  # one zone per box
            return np.arange(len(pair.overlap.b)), pair.overlap.b
        column, row = ranges(self.first[pair.overlap.b], count[pair.overlap.b])
        return row, column


def _columns(wanted: Wanted, zones: Zones) -> Columns:
    zone = zones.zone[wanted.pieces.rank]
    kinds = len(zones.tier)
    keys, column = np.unique(wanted.box * kinds + zone, return_inverse=True)
    first = np.searchsorted(keys, np.arange(len(wanted.boxes.low) + 1) * kinds)
    return Columns(first, keys % kinds, column.ravel())


class Classes:
    """Gives every set of sources that bytes may come from, and how near they are, its number."""

    def __init__(self, zones: Zones) -> None:
        self._tier = zones.tier
        self._sets: dict[bytes, int] = {}
        self._numbers: dict[tuple[int, bytes], int] = {}
        self._known: dict[tuple[int, int], int] = {}
        self.ranks: list[Ints] = []  # of each set of holders
        self.holders: list[int] = []  # of each class: its set of holders
        self.tiers: list[NDArray[np.int8]] = []  # of each class: how near they are

    def sets(self, held: Held) -> Ints:
        """Per cell the number of its set of holders; -1 for a single one."""
        made: Ints = np.full(len(held.first) - 1, -1)
        for cell in np.flatnonzero(held.holders > 1).tolist():
            ranks = held.rank[held.first[cell] : held.first[cell + 1]]
            number = self._sets.setdefault(ranks.tobytes(), len(self.ranks))
            if number == len(self.ranks):
                self.ranks.append(ranks)
            made[cell] = number
        return made

    def classes(self, sets: Ints, zone: Ints) -> Ints:
        """The class of each combination of a set and a zone."""
        kinds = len(self._tier)
        keys, place = np.unique(sets * kinds + zone, return_inverse=True)
        numbers = [self._class(*divmod(key, kinds)) for key in keys.tolist()]
        made: Ints = np.array(numbers, np.int64)[place.ravel()]
        return made

    def _class(self, holders: int, zone: int) -> int:
        known = self._known.get((holders, zone))
        if known is None:
            tiers = self._tier[zone, self.ranks[holders]]
            known = self._numbers.setdefault((holders, tiers.tobytes()), len(self.holders))
            if known == len(self.holders):
                self.holders.append(holders)
                self.tiers.append(tiers)
            self._known[holders, zone] = known
        return known

    def nearest(self, number: int) -> tuple[Ints, int]:
        """Those that may send the bytes of a class, and how near they are."""
        ranks, tiers = self.ranks[self.holders[number]], self.tiers[number]
        best = int(tiers.min())
        return ranks[tiers == best], best


class Rows(NamedTuple):
    """Of one pair: the overlaps with a choice of sources, for each kind of target."""

    overlap: Ints
    column: Ints
    number: Ints  # the class


class Lines:
    """All lines laid end to end: from cut[i] on, owner[i] sends. The same on all ranks.

    sent       (source ranks,) bytes that each sends to other processes
    """

    def __init__(self, pairs: Sequence[Pair], zones: Zones) -> None:
        self.zones = zones
        self.pairs = pairs
        self.classes = Classes(zones)
        self._sets: dict[int, Ints] = {}
        self._columns: dict[int, Columns] = {}
        fixed = np.zeros(zones.tier.shape[1], np.int64)
        self._counts: list[tuple[Ints, Ints]] = []
        for pair in pairs:
            self._add(pair, fixed)
        self.volume = np.zeros(len(self.classes.holders), np.int64)
        for number, elements in self._counts:
            np.add.at(self.volume, number, elements)
        self._counts.clear()
        self.base = self.volume.cumsum() - self.volume
        self._lay(fixed)

    def columns(self, pair: Pair) -> Columns:
        key = id(pair.wanted)
        found = self._columns.get(key)
        if found is None:
            found = self._columns[key] = _columns(pair.wanted, self.zones)
        return found

    def sets(self, pair: Pair) -> Ints:
        """Per cell the number of its set of holders; -1 for a single one."""
        key = id(pair.held)
        found = self._sets.get(key)
        if found is None:
            found = self._sets[key] = self.classes.sets(pair.held)
        return found

    def rows(self, pair: Pair) -> Rows:
        """The overlaps of a pair of which there are several holders."""
        columns = self.columns(pair)
        row, column = columns.expand(pair)
        sets = self.sets(pair)[pair.overlap.a[row]]
        chosen = sets >= 0
        row, column = row[chosen], column[chosen]
        return Rows(row, column, self.classes.classes(sets[chosen], columns.zone[column]))

    def before(self, rank: int) -> Ints:
        """(classes,) where on each line the bytes of a target rank begin."""
        made: Ints = self.base.copy()
        for pair in self.pairs:
            pieces = int(np.searchsorted(pair.wanted.pieces.rank, rank))
            if pieces and (self.sets(pair) >= 0).any():
                columns = self.columns(pair)
                count = np.bincount(columns.column[:pieces], minlength=len(columns.zone))
                rows = self.rows(pair)
                bytes_ = pair.overlap.elements[rows.overlap] * count[rows.column] * pair.weight
                np.add.at(made, rows.number, bytes_)
        return made

    def _add(self, pair: Pair, fixed: Ints) -> None:
        """Counts what a pair brings: to its only holder, or to a class."""
        columns = self.columns(pair)
        row, column = columns.expand(pair)
        count = np.bincount(columns.column, minlength=len(columns.zone))
        bytes_ = pair.overlap.elements[row] * count[column] * pair.weight
        sets = self.sets(pair)[pair.overlap.a[row]]
        many = sets >= 0
        if many.any():
            number = self.classes.classes(sets[many], columns.zone[column[many]])
            self._counts.append((number, bytes_[many]))
        if not many.all():
            one = ~many
            owner = pair.held.rank[pair.held.first[pair.overlap.a[row[one]]]]
            sent = self.zones.tier[columns.zone[column[one]], owner] > PROCESS
            np.add.at(fixed, owner, np.where(sent, bytes_[one], 0))

    def _lay(self, fixed: Ints) -> None:
        """Cuts the lines among the sources."""
        near = [self.classes.nearest(number) for number in range(len(self.volume))]
        local = np.array([tier == PROCESS for _, tier in near], bool)
        # Within a process one source serves as well as another, and nothing is sent.
        home = np.array([ranks[0] for ranks, tier in near if tier == PROCESS], np.int64)
        members = [ranks for ranks, tier in near if tier != PROCESS]
        first = np.cumsum([0, *(len(ranks) for ranks in members)])
        every = np.concatenate([*members, self.base[:0]])
        shares = spread(first, every, self.volume[~local], fixed)
        self.sent = fixed
        np.add.at(self.sent, shares.source, shares.amount)
        inside = shares.amount.cumsum() - shares.amount
        inside -= inside[np.searchsorted(shares.number, shares.number)]
        cut = np.concatenate((self.base[local], self.base[~local][shares.number] + inside))
        order = np.argsort(cut)
        self.cut = cut[order]
        self.owner = np.concatenate((home, shares.source))[order]
