"""Which rails are near which memory: what the topology says, as masks of rail numbers.

May import ffi, memory, topology and devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transport.ffi import ffi, lib
from transport.memory.driver import gpu_device
from transport.topology import Place, choose, read_machine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transport.providers.verbs.devices import UsablePort
    from transport.topology import Machine
    from transport.topology.choice import Map


class Near:
    """Of one engine's rails. 0 is no preference: all of them are equally good, or nobody knows."""

    def __init__(self, rails: Sequence[UsablePort], sysfs: Path, nic_map: Map) -> None:
        self._devices = [rail.facts.device for rail in rails]
        self._map = nic_map
        self._machine: Machine | None = None
        if len(rails) > 1:
            machine = read_machine(sysfs)
            if len(machine.nodes) > 1 or machine.gpus or nic_map:
                self._machine = machine
        self._masks: dict[int, int] = {}
        self._gpu_masks: dict[int, int] = {}

    def of_node(self, node: int) -> int:
        """For host memory on a NUMA node."""
        if self._machine is None or node < 0:
            return 0
        if node not in self._masks:
            self._masks[node] = self.of_place(Place(node))
        return self._masks[node]

    def of_gpu(self, ordinal: int) -> int:
        """For memory of the GPU that the driver numbers so in this process."""
        if self._machine is None or ordinal < 0:
            return 0
        if ordinal not in self._gpu_masks:
            gpu = self._machine.gpu(gpu_device(ordinal).address)
            self._gpu_masks[ordinal] = 0 if gpu is None else self.of_place(Place(gpu=gpu))
        return self._gpu_masks[ordinal]

    def of_place(self, place: Place) -> int:
        if self._machine is None:
            return 0
        names = set(choose(place, self._machine, self._map, self._devices).nics)
        numbers = [number for number, device in enumerate(self._devices) if device in names]
        return sum(1 << n for n in numbers) if len(numbers) < len(self._devices) else 0

    def of_memory(self, start: int, length: int) -> int:
        """Where both ends and the middle are on one node. Asking makes those pages present."""
        machine = self._machine
        if machine is None or not length or (len(machine.nodes) < 2 and not self._map):
            return 0
        probes = (start, start + length // 2, start + length - 1)
        nodes = {lib.tn_memory_node(ffi.cast("void *", address)) for address in probes}
        return self.of_node(nodes.pop()) if len(nodes) == 1 else 0
