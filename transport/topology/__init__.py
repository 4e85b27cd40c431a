"""Who is near whom: NICs, GPUs and memory by PCIe and NUMA, from sysfs alone.

May import errors, types and the standard library. Knows no provider and no GPU library: GPUs go by
their PCI address, which no CUDA_VISIBLE_DEVICES renumbers.
"""

from __future__ import annotations

from transport.topology.choice import Choice, Place, choose
from transport.topology.distance import Distance
from transport.topology.machine import Gpu, Machine, Nic, NicPort, Node, read_machine

__all__ = [
    "Choice",
    "Distance",
    "Gpu",
    "Machine",
    "Nic",
    "NicPort",
    "Node",
    "Place",
    "choose",
    "read_machine",
]
