"""Who sends how much: classes of bytes that several sources hold are spread over them. Pure.

May import boxes and flow. All arithmetic is exact or elementwise, and so the same on every machine:
ranks that never talk come to the same answer.

Sources that are in the same classes are interchangeable: they are one *bin*. What is to be decided
is how much of each class goes to which bin. Water is poured first, class by class; then a largest
flow repairs what that got wrong, under a ceiling that is raised only where a cut proves it too low.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from transport.sharding.boxes import sums
from transport.sharding.flow import Flow

if TYPE_CHECKING:
    from transport.sharding.boxes import Ints

_MAX_EDGES = 100_000  # of classes and bins; beyond that the flow would take seconds


class Shares(NamedTuple):
    """Which source sends how much of which class; sorted by class and source, nothing is 0."""

    number: Ints
    source: Ints
    amount: Ints


class _Bins(NamedTuple):
    bin: Ints  # (sources,) -1: of no class
    width: Ints  # (bins,) how many sources each is
    load: Ints  # (bins,) what these send in any case
    usable: list[list[int]]  # of each class


def spread(first: Ints, member: Ints, volume: Ints, load: Ints) -> Shares:
    """How much of each class each of its members sends, so that the busiest source sends least.

    first, member  class c may be sent by the sources member[first[c]:first[c + 1]]
    volume         (classes,) what each class comes to
    load           (sources,) what each source sends in any case
    """
    bins = _bins(first, member, load)
    flow = _poured(bins, volume.tolist())
    if sum(len(to) for to in bins.usable if len(to) > 1) <= _MAX_EDGES:
        _level(flow, bins, volume.tolist(), int(load.max(initial=0)))
    return _dealt(flow, bins, load)


def _bins(first: Ints, member: Ints, load: Ints) -> _Bins:
    number = np.repeat(np.arange(len(first) - 1), np.diff(first))
    order = np.argsort(member, kind="stable")
    of, begin = number[order], np.searchsorted(member[order], np.arange(len(load) + 1))
    known: dict[bytes, int] = {}
    made = np.full(len(load), -1)
    for source in np.flatnonzero(np.diff(begin)).tolist():
        classes = of[begin[source] : begin[source + 1]].tobytes()
        made[source] = known.setdefault(classes, len(known))
    used = made >= 0
    width = np.bincount(made[used], minlength=len(known))
    usable: list[list[int]] = [[] for _ in range(len(first) - 1)]
    for b, classes in enumerate(known):
        for c in np.frombuffer(classes, np.int64).tolist():
            usable[c].append(b)
    return _Bins(made, width, sums(made[used], load[used], len(known)), usable)


def _poured(bins: _Bins, volume: list[int]) -> Flow:
    """Each class fills the lowest of its bins, those with the least choice first; twice over."""
    flow = Flow(bins.usable, len(bins.width))
    load = bins.load.copy()
    for c, to in enumerate(bins.usable):
        if len(to) == 1:
            flow.carried[c][to[0]] = volume[c]
            load[to[0]] += volume[c]
    free = [c for c, to in enumerate(bins.usable) if len(to) > 1]
    free.sort(key=lambda c: len(bins.usable[c]))
    for c in free * 2:
        own = flow.carried[c]
        these = np.array(list(own))
        load[these] -= np.array(list(own.values()))
        amount = _pour(volume[c], load[these], bins.width[these])
        load[these] += amount
        own.update(zip(own, amount.tolist()))
    return flow


def _pour(amount: int, load: Ints, width: Ints) -> Ints:
    """How much of the amount each vessel takes: what fills them to a level, or nothing."""
    if len(load) == 1:
        return np.array([amount])
    height = load / width  # elementwise, so the same everywhere
    order = np.argsort(height, kind="stable")
    wide, full = width[order].cumsum(), load[order].cumsum()
    wet = int(np.searchsorted(height[order] * wide - full, amount, "right")) or 1
    while True:
        surface, rest = divmod(amount + int(full[wet - 1]), int(wide[wet - 1]))
        low = order[:wet]
        taken = surface * width[low] - load[low]
        if wet == 1 or (taken >= 0).all():
            break
        wet -= 1  # rounding let it in
    made = np.zeros(len(load), np.int64)
    made[low] = taken
    made[low[0]] += rest
    return made


def _level(flow: Flow, bins: _Bins, volume: list[int], floor: int) -> None:
    """Brings the busiest source down to the least possible maximum.

    A ceiling below it leaves excess; the classes and bins among which that is stuck show what the
    ceiling must be at least, which is tried next (Newton's method on a piecewise linear function).
    """
    width, load = bins.width.tolist(), bins.load.tolist()
    ceiling = max(floor, _bound(flow, bins, volume))
    while True:
        room, excess = _cap(flow, width, load, ceiling)
        if not any(excess):
            return
        classes, stuck = flow.raise_to(excess, room)
        if not any(excess):
            return
        within = sum(load[b] for b in stuck) + sum(volume[c] for c in classes)
        ceiling = -(-within // sum(width[b] for b in stuck))
        for c, left in enumerate(excess):
            if left:  # put back, to be taken from under the next ceiling
                flow.add(c, flow.usable[c][0], left)


def _bound(flow: Flow, bins: _Bins, volume: list[int]) -> int:
    """What the busiest must send at least, as the fullest bins prove together."""
    if not len(bins.width):
        return 0
    full = bins.load.copy()
    for carried in flow.carried:
        for b, amount in carried.items():
            full[b] += amount
    order = np.argsort(-(full / bins.width), kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    last = np.array([place[to].max() for to in bins.usable])  # the class is within these many
    inside = sums(last, np.array(volume), len(order)).cumsum() + bins.load[order].cumsum()
    return int((-(-inside // bins.width[order].cumsum())).max())


def _cap(
    flow: Flow, width: list[int], load: list[int], ceiling: int
) -> tuple[list[int], list[int]]:
    """Takes out of each bin what is above the ceiling: the bins' room, and the classes' excess."""
    excess = [0] * len(flow.usable)
    room: list[int] = []
    for b, classes in enumerate(flow.users):
        left = ceiling * width[b] - load[b] - sum(flow.carried[c][b] for c in classes)
        for c in reversed(classes):
            taken = min(max(-left, 0), flow.carried[c][b])
            flow.carried[c][b] -= taken
            excess[c] += taken
            left += taken
        room.append(left)
    return room, excess


def _dealt(flow: Flow, bins: _Bins, load: Ints) -> Shares:
    """Divides each bin among its sources: the classes one after the other, cut as few times as can.

    Source: R. McNaughton, "Scheduling with deadlines and loss functions", 1959 (wrap-around).
    """
    parts = [(c, b, n) for b, cs in enumerate(flow.users) for c in cs if (n := flow.carried[c][b])]
    number, which, amount = (np.array(a, np.int64) for a in zip(*parts)) if parts else [_NONE] * 3
    source = np.argsort(bins.bin, kind="stable")[int((bins.bin < 0).sum()) :]
    total = sums(which, amount, len(bins.width))
    taken = [
        _pour(n, load[own], np.ones_like(own))
        for n, own in zip(total.tolist(), np.split(source, bins.width.cumsum()[:-1]))
    ]
    each = np.concatenate(taken or [_NONE])
    ends = amount.cumsum(), each.cumsum()
    cut = np.union1d(*ends)
    cut = cut[cut > 0]
    length = np.diff(cut, prepend=0)
    rows = [np.searchsorted(end, cut) for end in ends]
    made = Shares(number[rows[0]], source[rows[1]], length)
    order = np.lexsort((made.source, made.number))
    return Shares(*(array[order] for array in made))


_NONE = np.zeros(0, np.int64)
