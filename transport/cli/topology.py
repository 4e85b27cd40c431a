"""`transport topology`: where NICs and GPUs are, which NICs memory uses, and why."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transport.config import Settings
from transport.topology import Choice, Gpu, Machine, Nic, Place, choose, read_machine
from transport.topology.distance import between

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.tree import Tree

    from transport.topology.choice import Map

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_PLAIN_WIDTH = 160  # where stdout is no terminal


@click.command("topology", short_help="Show NUMA nodes, NICs and GPUs, and which NICs are used.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the tree.")
@click.option(
    "--sysfs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Read a recorded tree instead of TRANSPORT_VERBS_SYSFS (/sys).",
)
def topology(as_json: bool, sysfs: Path | None) -> None:
    """Show NUMA nodes, RDMA devices and GPUs as PCIe joins them, and the choice of NICs.

    For the memory of each NUMA node and GPU: the NICs that would be used, how far they are (PIX,
    PXB, PHB, NODE, SYS, as nvidia-smi says it; UNTOLD where nothing tells) and the reason. GPUs are
    numbered by PCI address, whatever CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES say; where there
    is a driver, its own numbers are shown beside. TRANSPORT_VERBS_NIC_MAP overrides the choice.
    Needs neither libibverbs nor a GPU library. A variable that makes no sense counts as unset, and
    makes the exit status 1.
    """
    import json
    import os

    settings, wrong = Settings.survey(os.environ)
    for name, reason in wrong.items():
        click.echo(f"{name} {reason}; the default is used", err=True)
    machine = read_machine(sysfs or settings.verbs_sysfs)
    chosen = choices(machine, settings.verbs_nic_map)
    seen = seen_by_driver(settings) if machine.gpus else {}
    if as_json:
        click.echo(json.dumps(to_json(machine, chosen, seen), indent=1))
    else:
        _print(machine, chosen, seen, list(notes(machine, os.environ, seen)))
    if wrong:
        sys.exit(1)


def seen_by_driver(settings: Settings) -> dict[str, str]:
    """PCI addresses -> what this process calls those GPUs ("cuda:0"); empty without a driver."""
    from transport.errors import TransportError
    from transport.memory import driver

    try:
        driver.choose(settings)
        found = driver.driver()
    except TransportError:
        return {}
    return {device.address: f"{found.platform}:{device.ordinal}" for device in found.devices}


def choices(machine: Machine, nic_map: Map) -> list[Choice]:
    """One for each NUMA node and GPU."""
    places = [Place(node.number) for node in machine.nodes] or [Place(0)]
    places += [Place(gpu=gpu) for gpu in machine.gpus]
    return [choose(place, machine, nic_map) for place in places]


def to_json(
    machine: Machine, chosen: Sequence[Choice], seen: Mapping[str, str] | None = None
) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "schema": 1,
        "nodes": [asdict(node) for node in machine.nodes],
        "nics": [asdict(nic) for nic in machine.nics],
        "gpus": [
            {"name": gpu.name, **asdict(gpu), "device": (seen or {}).get(gpu.address)}
            for gpu in machine.gpus
        ],
        "peer_memory": machine.peer_memory,
        "distances": {
            gpu.name: {nic.name: between(gpu, nic, machine.nodes).name for nic in machine.nics}
            for gpu in machine.gpus
        },
        "choices": [
            {
                "place": choice.place.name,
                "nics": list(choice.nics),
                "distance": choice.distance.name,
                "reason": choice.reason,
            }
            for choice in chosen
        ],
    }


def notes(
    machine: Machine, environ: Mapping[str, str], seen: Mapping[str, str] | None = None
) -> Iterator[str]:
    """What one might stumble over."""
    for address, name in (seen or {}).items():
        if machine.gpu(address) is None:
            yield f"sysfs does not tell of {name} at {address}: nothing is known of its place"
    if not machine.gpus:
        yield "no GPUs"
    else:
        loaded = machine.peer_memory or "no module for peer memory is loaded"
        yield f"GPU memory by NICs: {loaded}; whether dma-buf works is asked of the driver in use"
    for name in _VISIBLE:
        if environ.get(name) and machine.gpus:
            yield f"{name}={environ[name]} renumbers the GPUs that a process sees, not those here"
    if machine.nics and all(nic.numa < 0 for nic in machine.nics) and len(machine.nodes) > 1:
        yield "sysfs does not tell on which NUMA node the NICs are: TRANSPORT_VERBS_NIC_MAP can"


def _print(
    machine: Machine, chosen: Sequence[Choice], seen: Mapping[str, str], told: Sequence[str]
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    # Addresses such as 0000:ab:00.0 contain what rich would take for an emoji.
    width = None if sys.stdout.isatty() else _PLAIN_WIDTH
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    console.print(tree(machine))
    table = Table("memory", "NICs", "distance", "reason", box=box.SIMPLE_HEAD, pad_edge=False)
    for choice in chosen:
        names = ", ".join(choice.nics) or "none"
        place = choice.place.name
        if choice.place.gpu is not None and choice.place.gpu.address in seen:
            place += f" ({seen[choice.place.gpu.address]})"
        distance = choice.distance.name if choice.nics else "-"
        table.add_row(place, names, distance, choice.reason)
    console.print(table)
    for line in told:
        console.print(f"! {line}")


_Level = dict[str, Any]  # what hangs below a bridge, by address: levels, and devices as text


def tree(machine: Machine) -> Tree:
    """NUMA nodes, host bridges, bridges, devices. Bridges in a row share a line."""
    from rich.text import Text
    from rich.tree import Tree

    root = Tree("machine")
    devices: list[Nic | Gpu] = [*machine.nics, *machine.gpus]
    cpus = {node.number: f"CPUs {node.cpus}" if node.cpus else "no CPUs" for node in machine.nodes}
    for number in [*cpus, *sorted({device.numa for device in devices} - cpus.keys())]:
        words = f"NUMA node {number}: {cpus.get(number, 'not listed')}"
        branch = root.add(Text(words if number >= 0 else "NUMA node not told"))
        _hang(branch, _levels(device for device in devices if device.numa == number))
    return root


def _levels(devices: Iterable[Nic | Gpu]) -> _Level:
    top: _Level = {}
    for device in sorted(devices, key=lambda device: device.path):
        level = top
        for step in device.path[:-1]:
            level = level.setdefault(step, {})
        level[device.path[-1] if device.path else device.name] = _leaf(device)
    return top


def _hang(branch: Tree, level: _Level) -> None:
    from rich.text import Text

    for step, below in level.items():
        way = [step]
        while isinstance(below, dict) and len(below) == 1:
            step, below = next(iter(below.items()))
            way.append(step)
        if isinstance(below, dict):
            _hang(branch.add(Text(" / ".join(way))), below)
        else:
            branch.add(Text(f"{' / '.join(way)}  {below}"))


def _leaf(device: Nic | Gpu) -> str:
    if isinstance(device, Gpu):
        return f"{device.name}: {device.vendor}, driver {device.driver or 'none'}"
    ports = [f"port {p.number} {p.state} {p.link_layer} {p.rate}" for p in device.ports]
    trouble = [device.unusable] if device.unusable else []
    software = [] if device.path else ["software"]
    return f"{device.name}: {', '.join([*software, *ports, *trouble])}"
