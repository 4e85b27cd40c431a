"""Which NICs to use for memory in some place, and why. Pure: a machine in, a choice out.

May import distance, machine, errors and the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from transport.errors import InvalidUse
from transport.topology.distance import Distance, between, of_nodes
from transport.topology.machine import Gpu, pci_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transport.topology.machine import Machine, Nic, Node

Map = tuple[tuple[str, tuple[str, ...]], ...]
"""TRANSPORT_VERBS_NIC_MAP, read: places and the names of their NICs."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where memory is: on a NUMA node, or on a GPU."""

    node: int = -1
    gpu: Gpu | None = None

    @property
    def name(self) -> str:
        return self.gpu.name if self.gpu else f"cpu:{self.node}"

    @classmethod
    def parse(cls, text: str, machine: Machine) -> Place:
        """ "gpu0", "cpu:1", or the PCI address of a GPU. Raises InvalidUse if it is not here."""
        if text.startswith("cpu:") and text[4:].isdecimal():
            return cls(int(text[4:]))
        gpu = machine.gpu(text)
        if gpu is None:
            have = ", ".join(f"{gpu.name} ({gpu.address})" for gpu in machine.gpus) or "none"
            raise InvalidUse(f"there is no GPU {text}; GPUs: {have}")
        return cls(gpu=gpu)


@dataclass(frozen=True, slots=True)
class Choice:
    """The NICs for memory in `place`, all equally near, and the reason in words."""

    place: Place
    nics: tuple[str, ...]
    distance: Distance
    reason: str


def choose(
    place: Place, machine: Machine, nic_map: Map = (), allowed: Iterable[str] | None = None
) -> Choice:
    """The nearest NICs that can be used; `allowed` names those that an engine has opened.

    The map wins over distance. NICs that are down, or cannot be used by verbs, are left out, and
    if nothing else is left, all that are allowed are equally good.
    """
    names = None if allowed is None else set(allowed)
    usable = [nic for nic in machine.nics if _usable(nic, names)]
    mapped = _mapped(place, machine, nic_map)
    if mapped:
        found = tuple(nic.name for nic in usable if nic.name in mapped)
        if found:
            return Choice(place, found, _far(place, usable, found, machine), _BY_MAP)
    if not usable:
        return Choice(place, (), Distance.UNTOLD, _none(machine))
    if allowed is None:
        usable = _fast(usable)
    missing = f"; the map's {', '.join(mapped)} cannot be used" if mapped else ""
    choice = _nearest(place, usable, machine.nodes)
    return Choice(place, choice.nics, choice.distance, choice.reason + missing)


_BY_MAP = "by TRANSPORT_VERBS_NIC_MAP"


def _usable(nic: Nic, allowed: set[str] | None) -> bool:
    if allowed is not None:
        return nic.name in allowed
    return not nic.unusable and any(port.active for port in nic.ports)


def _fast(nics: Sequence[Nic]) -> list[Nic]:
    """Without those below half of the fastest, which an engine leaves out as well."""
    rates = [max((port.gbit for port in nic.ports if port.active), default=0.0) for nic in nics]
    best = max(rates, default=0.0)
    return [nic for nic, rate in zip(nics, rates, strict=True) if not 0 < rate < best / 2]


def _none(machine: Machine) -> str:
    """Why no NIC can be used."""
    reasons: dict[str, list[str]] = {}
    for nic in machine.nics:
        reasons.setdefault(nic.unusable or "no port is active", []).append(nic.name)
    told = (f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    return "; ".join(told) or "there is no RDMA device"


def _mapped(place: Place, machine: Machine, nic_map: Map) -> tuple[str, ...]:
    for key, names in nic_map:
        if key.startswith("cpu:"):
            found = place.gpu is None and place.name == key
        else:
            gpu = machine.gpu(key if key.startswith("gpu") else pci_address(key))
            found = gpu is not None and place.gpu == gpu
        if found:
            return names
    return ()


def _far(place: Place, usable: Sequence[Nic], names: Iterable[str], machine: Machine) -> Distance:
    chosen = set(names)
    return max(_distance(place, nic, machine.nodes) for nic in usable if nic.name in chosen)


def _distance(place: Place, nic: Nic, nodes: Sequence[Node]) -> Distance:
    if place.gpu is not None:
        return between(place.gpu, nic, nodes)
    return of_nodes(place.node, nic.numa, nodes)


def _cost(place: Place, nic: Nic, nodes: Sequence[Node]) -> tuple[Distance, int]:
    """Among NICs on other nodes the firmware's distance decides."""
    distance = _distance(place, nic, nodes)
    start = place.gpu.numa if place.gpu else place.node
    steps = 0
    if distance is Distance.SYS:
        node = next((node for node in nodes if node.number == start), None)
        numbers = [node.number for node in nodes]
        if node and nic.numa in numbers and len(node.distances) == len(numbers):
            steps = node.distances[numbers.index(nic.numa)]
    return distance, steps


def _nearest(place: Place, usable: Sequence[Nic], nodes: Sequence[Node]) -> Choice:
    costs = {nic.name: _cost(place, nic, nodes) for nic in usable}
    best = min(costs.values())
    names = tuple(name for name, cost in costs.items() if cost == best)
    distance = best[0]
    if distance is Distance.UNTOLD:
        reason = "nothing tells where the NICs are: all are equally good"
    elif len(set(costs.values())) == 1 and len(names) > 1:
        reason = f"all are equally near ({distance.words})"
    else:
        reason = distance.words
    return Choice(place, names, distance, reason)
