"""Who sends how much to whom when a whole group of ranks reshards. Pure.

May import the planner's files. For looking at a plan before it is run; nothing needs it to run one.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from transport.sharding.parts import Rows, _joined, _lay, of_target, part
from transport.sharding.places import HOST, PROCESS, Places
from transport.sharding.planner import Planner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from transport.sharding.copies import Copies
    from transport.sharding.layout import Layout
    from transport.sharding.lines import Lines
    from transport.sharding.pairs import Pair
    from transport.sharding.state import StateLayout

    Ints = NDArray[np.int64]


class Sent(NamedTuple):
    """Per rank: bytes from or to other processes, those of them that leave the host, and the number
    of transfers between processes."""

    nbytes: Ints
    wire: Ints
    transfers: Ints


@dataclass(frozen=True, eq=False)
class Traffic:
    """What all ranks of a group pull, each byte in the source's dtype.

    matrix         (source ranks, target ranks) bytes between different processes
    by_tier        (4,) bytes within a process, within a host, on a rail, farther
    lower_bound    bytes that cannot but be sent: what each target lacks in its own process
    least_busiest  no choice of replicas would let the busiest source send less: a proven bound
    """

    matrix: Ints
    by_tier: Ints
    sent_by: Sent
    sent_to: Sent
    lower_bound: int
    least_busiest: int

    @cached_property
    def nbytes(self) -> int:
        """Between different processes."""
        return int(self.matrix.sum())

    @property
    def transfers(self) -> int:
        return int(self.sent_to.transfers.sum())

    @property
    def busiest(self) -> int:
        """Bytes of the source that sends most."""
        return int(self.sent_by.nbytes.max(initial=0))

    @property
    def imbalance(self) -> float:
        """The busiest source's bytes over the least possible for the busiest; 1 is best."""
        return self.busiest / self.least_busiest if self.busiest else 1.0

    @property
    def max_over_mean(self) -> float:
        """Over all source ranks, also those that hold nothing that is asked for."""
        mean = self.nbytes / max(1, len(self.sent_by.nbytes))
        return self.busiest / mean if self.busiest else 1.0


def traffic(
    source: StateLayout,
    target: StateLayout,
    source_places: Places | None = None,
    target_places: Places | None = None,
    step: Callable[[int], object] = lambda rank: None,
) -> Traffic:
    """Plans every target rank. `step` is called with each that is done.

    Raises LayoutError as `plan` does.
    """
    planner = Planner(source, target, source_places, target_places, frozenset())
    sources, targets = (1 + max(state.ranks, default=-1) for state in (source, target))
    matrix = np.zeros((sources, targets), np.int64)
    by_tier = np.zeros(4, np.int64)
    sent_by, sent_to = (Sent(*np.zeros((3, ranks), np.int64)) for ranks in (sources, targets))
    for rank in range(targets):
        row = _Tally(sources)
        for rows in of_target(planner.lines, rank):
            for one in _parts(planner.lines, rows):
                row.add(planner.lines, one)
        matrix[:, rank] = row.nbytes[PROCESS + 1 :].sum(axis=0)
        by_tier += row.nbytes.sum(axis=1)
        row.into(sent_by, sent_to, rank)
        step(rank)
    bound = lower_bound(source, target, source_places, target_places)
    return Traffic(matrix, by_tier, sent_by, sent_to, bound, least_busiest(planner.lines))


class _Copied(NamedTuple):
    """Copies of a pair of layouts, each made so many times."""

    pair: Pair
    item: Ints
    piece: Ints
    copies: Copies
    times: int


def _parts(lines: Lines, rows: Rows) -> Iterator[_Copied]:
    """What one source alone holds is copied alike for all tensors: it is worked out once."""
    alone = np.flatnonzero(rows.number < 0)
    if len(alone):
        pair = rows.pair
        item, piece = pair.held.first[pair.overlap.a[rows.overlap[alone]]], rows.piece[alone]
        copies, kept = _joined(pair, _lay(pair, rows.overlap[alone], item, piece), item, piece)
        yield _Copied(pair, item[kept], piece[kept], copies, len(pair.tensors))
    if len(alone) < len(rows.number):
        chosen = rows._replace(**{f: getattr(rows, f)[rows.number >= 0] for f in Rows._fields[1:]})
        for one in part(lines, chosen):
            copies = one.copies.take(one.kind)
            yield _Copied(one.pair, one.item[one.kind], one.piece[one.kind], copies, 1)


class _Tally:
    """What one target rank gets, by how near it is and from whom."""

    def __init__(self, sources: int) -> None:
        self.nbytes = np.zeros((4, sources), np.int64)
        self.transfers = np.zeros((4, sources), np.int64)

    def add(self, lines: Lines, one: _Copied) -> None:
        source = one.pair.held.rank[one.item]
        target = one.pair.wanted.pieces.rank[one.piece]
        tier = lines.zones.tier[lines.zones.zone[target], source]
        elements = one.copies.size.prod(axis=1) * one.times
        np.add.at(self.nbytes, (tier, source), elements * one.pair.source.itemsize)
        np.add.at(self.transfers, (tier, source), one.times)

    def into(self, sent_by: Sent, sent_to: Sent, rank: int) -> None:
        counts = (
            self.nbytes[PROCESS + 1 :].sum(axis=0),
            self.nbytes[HOST + 1 :].sum(axis=0),
            self.transfers[PROCESS + 1 :].sum(axis=0),
        )
        for by, to, count in zip(sent_by, sent_to, counts):
            by += count
            to[rank] = count.sum()


def lower_bound(
    source: StateLayout,
    target: StateLayout,
    source_places: Places | None = None,
    target_places: Places | None = None,
) -> int:
    """Bytes that must come from another process, worked out without the planner.

    What one process holds of a tensor is taken to be equal or disjoint boxes.
    """
    groups: dict[tuple[Layout, Layout], int] = {}
    for name, want in target.items():
        key = source[name].layout, want.layout
        groups[key] = groups.get(key, 0) + 1
    together = _together(source_places, target_places)
    elements = [
        (count * have.itemsize, _wanted(want) - _near(have, want, together))
        for (have, want), count in groups.items()
    ]
    return sum(weight * number for weight, number in elements)


def _wanted(layout: Layout) -> int:
    return int(layout.pieces().size.prod(axis=1).sum())


def _together(source: Places | None, target: Places | None) -> dict[int, list[int]]:
    """Target rank -> the source ranks in its process."""
    if source is None or target is None:
        return {}
    at: dict[object, list[int]] = {}
    for rank, process in enumerate(source.process):
        at.setdefault(process, []).append(rank)
    at.pop(None, None)
    return {rank: at[p] for rank, p in enumerate(target.process) if p in at}


def _near(have: Layout, want: Layout, together: dict[int, list[int]]) -> int:
    """Elements that target ranks find in their own process."""
    found = 0
    for rank in np.unique(want.pieces().rank).tolist() if together else ():
        boxes = {
            (tuple(low), tuple(size))
            for other in together.get(rank, ())
            for low, size in zip(*(a.tolist() for a in _boxes(have, other)))
        }
        if boxes:
            low, size = (np.array(part) for part in zip(*boxes))
            found += _common(low, size, *_boxes(want, rank))
    return found


def _boxes(layout: Layout, rank: int) -> tuple[Ints, Ints]:
    pieces = layout.pieces_of(rank)
    return pieces.offset, pieces.size


def _common(a_low: Ints, a_size: Ints, b_low: Ints, b_size: Ints) -> int:
    low = np.maximum(a_low[:, None], b_low[None])
    high = np.minimum((a_low + a_size)[:, None], (b_low + b_size)[None])
    return int(np.maximum(high - low, 0).prod(axis=2).sum())


def least_busiest(lines: Lines) -> int:
    """What the busiest source sends at least, whatever replicas are chosen (nearest ones only).

    From the busiest source one goes to all that could take over what it, or they, may hand on. The
    bytes that only these sources have must be sent by them: their mean is the bound. It is what the
    busiest sends if nothing can be gained any more.
    """
    shares = _shares(lines)
    servers: dict[int, list[int]] = {}
    for number, (members, given) in enumerate(shares):
        for rank in members[given > 0].tolist():
            servers.setdefault(rank, []).append(number)
    if not len(lines.sent):
        return 0
    busiest = int(lines.sent.argmax())
    reached, classes, queue = {busiest}, set[int](), deque([busiest])
    while queue:
        for number in servers.get(queue.popleft(), ()):
            classes.add(number)
            fresh = set(shares[number][0].tolist()) - reached
            reached |= fresh
            queue.extend(fresh)
    fixed = lines.sent.copy()
    for members, given in shares:
        np.subtract.at(fixed, members, given)
    inside = sorted(reached)
    volume = sum(int(shares[number][1].sum()) for number in classes)
    shared = _mean_up(int(fixed[inside].sum()) + volume, len(inside))
    mean = _mean_up(int(lines.sent.sum()), len(lines.sent))
    return max(shared, int(fixed.max(initial=0)), mean)


def _mean_up(total: int, count: int) -> int:
    """Some one of them has as much at least: bytes are whole."""
    return -(-total // count)


def _shares(lines: Lines) -> list[tuple[Ints, Ints]]:
    """Of each class that is sent: who may send it, and how much of it each is to send."""
    length = np.diff(lines.cut, append=int(lines.volume.sum()))
    number = np.searchsorted(lines.base, lines.cut, "right") - 1
    order = np.argsort(number, kind="stable")
    edges = np.searchsorted(number[order], np.arange(len(lines.volume) + 1))
    made = []
    for one, (low, high) in enumerate(itertools.pairwise(edges.tolist())):
        members, tier = lines.classes.nearest(one)
        if tier > PROCESS:
            given = np.zeros(len(members), np.int64)
            own = order[low:high]
            np.add.at(given, np.searchsorted(members, lines.owner[own]), length[own])
            made.append((members, given))
    return made
