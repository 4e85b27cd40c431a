"""Which CPUs and GPUs each process of a machine gets. Imports errors only; starts no driver."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from transport.errors import InvalidUse, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_CPUS = Path("/sys/devices/system/cpu")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def cores() -> list[tuple[int, ...]]:
    """The physical cores that this process may use, each with its hardware threads.

    Neighbours in the list are neighbours in the machine: by NUMA node, then by number.
    """
    allowed = os.sched_getaffinity(0)
    found: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(allowed):
        folder = _CPUS / f"cpu{cpu}"
        nodes = [int(path.name[4:]) for path in folder.glob("node[0-9]*")]
        try:
            siblings = (folder / "topology" / "thread_siblings_list").read_text()
            first = int(siblings.replace("-", ",").split(",")[0])
        except (OSError, ValueError):
            first = cpu
        found.setdefault((min(nodes, default=0), first), []).append(cpu)
    return [tuple(threads) for _, threads in sorted(found.items())]


def cpus_of(index: int, count: int, machine: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The CPUs of process `index` of `count`: whole cores, evenly; one core for several processes
    where there are more of these.
    """
    if count >= len(machine):
        return machine[index * len(machine) // count]
    first, after = index * len(machine) // count, (index + 1) * len(machine) // count
    return tuple(cpu for core in machine[first:after] for cpu in core)


def gpus_of(index: int, each: int, visible: Sequence[str]) -> dict[str, str]:
    """The environment in which process `index` sees its `each` GPUs, numbered from 0.

    Both platforms' variables are set; each reads its own. Raises Unavailable.
    """
    if each < 0:
        raise InvalidUse(f"gpus_per_process={each}: a count, or None to leave it as it is")
    mine = visible[index * each : (index + 1) * each]
    if len(mine) < each:
        reason = f"process {index} needs {each} of this machine's GPUs and {len(visible)} are there"
        raise Unavailable(reason, "start fewer processes, or say gpus_per_process=None to share")
    return dict.fromkeys(_VISIBLE, ",".join(mine))


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """By what names the drivers know the GPUs that this process may use."""
    for name in _VISIBLE:
        if name in environment:
            return [entry.strip() for entry in environment[name].split(",") if entry.strip()]
    nvidia = list(Path("/proc/driver/nvidia/gpus").glob("*"))
    return [str(number) for number in range(len(nvidia) or _count_amd())]


def _count_amd(nodes: Iterable[Path] | None = None) -> int:
    """GPUs of the amdgpu driver: nodes of its topology that have vector units."""
    count = 0
    for node in nodes or Path("/sys/class/kfd/kfd/topology/nodes").glob("*"):
        try:
            lines = (node / "properties").read_text().splitlines()
        except OSError:
            continue
        count += any(line.startswith("simd_count ") and not line.endswith(" 0") for line in lines)
    return count
