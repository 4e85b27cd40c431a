"""Who sends how much: classes of bytes that several sources hold are spread over them. Pure.

May import boxes. All arithmetic is exact or elementwise, and so the same on every machine: ranks
that never talk come to the same answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from transport.sharding.boxes import Ints


def spread(first: Ints, member: Ints, volume: Ints, load: Ints) -> Ints:
    """How much each member of each class sends, so that the busiest source sends least.

    first, member  class c may be sent by the sources member[first[c]:first[c + 1]]
    volume         (classes,) what each class comes to
    load           (sources,) what each source sends in any case

    Returns (len(member),), which sums up to `volume` class by class.
    """
    share = np.zeros(len(member), np.int64)
    load = load.copy()
    for _ in range(4):
        for c in np.argsort(np.diff(first), kind="stable").tolist():
            own = slice(int(first[c]), int(first[c + 1]))
            load[member[own]] -= share[own]
            share[own] = _pour(int(volume[c]), load[member[own]])
            load[member[own]] += share[own]
    return share


def _pour(amount: int, level: Ints) -> Ints:
    """Fills the lowest first, as water does: what each takes of the amount."""
    order = np.argsort(level, kind="stable")
    rising = level[order]
    count = np.arange(1, len(level) + 1)
    need = rising * count - rising.cumsum()  # to fill all before it up to this one
    wet = int(np.searchsorted(need, amount, "right"))
    total = amount + int(rising[:wet].sum())
    surface, rest = divmod(total, wet)
    taken = np.zeros(len(level), np.int64)
    taken[order[:wet]] = surface - rising[:wet]
    taken[order[:rest]] += 1
    return taken
