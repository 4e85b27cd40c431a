"""How far two devices are apart, in the words of `nvidia-smi topo`. Pure.

May import machine (for typing) and the standard library.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.topology.machine import Gpu, Nic, Node

_HOST_BRIDGE = 1  # a common way of this length is the host bridge alone


class Distance(enum.IntEnum):
    """Smaller is nearer."""

    SAME = 0
    PIX = 1
    PXB = 2
    PHB = 3
    NODE = 4
    SYS = 5
    UNTOLD = 6

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    Distance.SAME: "the same device",
    Distance.PIX: "one PCIe bridge between them",
    Distance.PXB: "several PCIe bridges between them",
    Distance.PHB: "the same PCIe host bridge",
    Distance.NODE: "the same NUMA node",
    Distance.SYS: "another NUMA node",
    Distance.UNTOLD: "nothing is told about where they are",
}


def between(a: Nic | Gpu, b: Nic | Gpu, nodes: Sequence[Node] = ()) -> Distance:
    """Symmetric."""
    common = _common(a.path, b.path)
    if a.path and a.path[:-1] == b.path[:-1] and _slot(a.path[-1]) == _slot(b.path[-1]):
        return Distance.SAME
    if common > _HOST_BRIDGE:
        # A switch is an upstream and some downstream bridges: two steps below it is one switch.
        steps = max(len(a.path), len(b.path)) - common
        return Distance.PIX if steps <= 2 else Distance.PXB
    if a.numa >= 0 and b.numa >= 0 and a.numa != b.numa:
        return Distance.SYS
    if common == _HOST_BRIDGE:
        return Distance.PHB
    return of_nodes(a.numa, b.numa, nodes)


def of_nodes(a: int, b: int, nodes: Sequence[Node] = ()) -> Distance:
    """Of two NUMA nodes. Where there is one only, everything is on it."""
    if len(nodes) == 1 or (a == b and a >= 0):
        return Distance.NODE
    return Distance.UNTOLD if min(a, b) < 0 else Distance.SYS


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    length = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        length += 1
    return length


def _slot(address: str) -> str:
    """The functions of one device differ in their last digit only."""
    return address.rpartition(".")[0]
