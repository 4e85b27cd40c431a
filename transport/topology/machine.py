"""What sysfs tells of NUMA nodes, NICs and GPUs. Every file may be missing. Standard library only.

(Documentation/ABI/testing/sysfs-bus-pci and sysfs-class-infiniband of Linux.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_VENDORS = {0x10DE: "NVIDIA", 0x1002: "AMD", 0x8086: "Intel"}
# Display controllers and processing accelerators, by base class of the PCI code assignments; VGA
# controllers of other vendors (of a board's management chip) are no GPUs.
_DISPLAY, _ACCELERATOR = 0x03, 0x12
_VGA = 0x0300
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True, slots=True)
class Node:
    """One NUMA node. `distances` are the firmware's, to each node in order of numbers."""

    number: int
    cpus: str
    distances: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NicPort:
    number: int
    state: str  # the kernel's word: "ACTIVE", "DOWN"
    link_layer: str
    rate: str  # the kernel's text: "100 Gb/sec (4X EDR)"

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE"

    @property
    def gbit(self) -> float:
        """Gbit/s; 0 if unknown."""
        told = re.match(r"([\d.]+) Gb/sec", self.rate)
        return float(told[1]) if told else 0.0


@dataclass(frozen=True, slots=True)
class Nic:
    """One RDMA device. `path` leads from the PCI host bridge to it; empty for software devices."""

    name: str
    address: str
    path: tuple[str, ...]
    numa: int
    driver: str
    ports: tuple[NicPort, ...]
    unusable: str = ""  # why verbs cannot use it


@dataclass(frozen=True, slots=True)
class Gpu:
    """`index` counts by PCI address over all GPUs of the machine, whatever a process may see."""

    index: int
    address: str
    path: tuple[str, ...]
    numa: int
    vendor: str
    driver: str

    @property
    def name(self) -> str:
        return f"gpu{self.index}"


@dataclass(frozen=True, slots=True)
class Machine:
    nodes: tuple[Node, ...]
    nics: tuple[Nic, ...]
    gpus: tuple[Gpu, ...]
    peer_memory: str = ""  # the loaded kernel module by which NICs reach GPU memory

    def gpu(self, name: str) -> Gpu | None:
        """By "gpuN" or by PCI address, which may lack its domain or spell it with 8 digits."""
        wanted = name if name.startswith("gpu") else pci_address(name)
        return next((gpu for gpu in self.gpus if wanted in (gpu.name, gpu.address)), None)

    def nic(self, name: str) -> Nic | None:
        return next((nic for nic in self.nics if nic.name == name), None)


def pci_address(text: str) -> str:
    """As sysfs spells it: GPU libraries say "00000000:0A:00.0", people "0a:00.0"."""
    words = text.strip().lower()
    if words.count(":") == 1:
        words = f"0000:{words}"
    domain, _, rest = words.partition(":")
    return f"{domain[-4:] if domain.startswith('0000') and len(domain) == 8 else domain}:{rest}"


def read_machine(sysfs: Path = Path("/sys")) -> Machine:
    """Never raises for what is absent."""
    return Machine(
        nodes=tuple(_nodes(sysfs / "devices" / "system" / "node")),
        nics=tuple(_nics(sysfs)),
        gpus=tuple(_gpus(sysfs)),
        peer_memory=_peer_memory(sysfs / "module"),
    )


def _peer_memory(modules: Path) -> str:
    known = ("nvidia_peermem", "nv_peer_mem", "amdgpu")
    return next((name for name in known if (modules / name).is_dir()), "")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(text: str, otherwise: int, base: int = 10) -> int:
    try:
        return int(text, base)
    except ValueError:
        return otherwise


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir(), key=lambda entry: _natural(entry.name))
    except OSError:
        return []


def _natural(name: str) -> list[tuple[int, str]]:
    """mlx5_10 comes after mlx5_9."""
    parts = re.findall(r"\d+|\D+", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _nodes(folder: Path) -> Iterator[Node]:
    for entry in _entries(folder):
        number = re.fullmatch(r"node(\d+)", entry.name)
        if number:
            distances = (_number(word, 0) for word in _text(entry / "distance").split())
            yield Node(int(number[1]), _text(entry / "cpulist"), tuple(distances))


def _driver(device: Path) -> str:
    try:
        return (device / "driver").readlink().name
    except OSError:
        return ""


def _place(device: Path) -> tuple[tuple[str, ...], int]:
    """The way from the host bridge, and the NUMA node (-1: the firmware does not tell)."""
    try:
        parts = device.resolve().parts
    except (OSError, RuntimeError):
        return (), -1
    bridges = [at for at, part in enumerate(parts) if re.fullmatch(r"pci[0-9a-f]{4,8}:\S+", part)]
    if not bridges:
        return (), _number(_text(device / "numa_node"), -1)
    path = [parts[bridges[-1]], *filter(_ADDRESS.fullmatch, parts[bridges[-1] + 1 :])]
    return tuple(path), _number(_text(device / "numa_node"), -1)


def _nics(sysfs: Path) -> Iterator[Nic]:
    for entry in _entries(sysfs / "class" / "infiniband"):
        device = _hardware(sysfs, entry)
        path, numa = _place(device)
        driver = _driver(device)
        yield Nic(
            name=entry.name,
            address=path[-1] if len(path) > 1 else "",
            path=path,
            numa=numa,
            driver=driver,
            ports=tuple(_port(port) for port in _entries(entry / "ports")),
            unusable=_unusable(entry, driver),
        )


def _hardware(sysfs: Path, entry: Path) -> Path:
    """Of a software device (rxe, siw) that of the network interface below it."""
    if (entry / "device").exists():
        return entry / "device"
    parent = _text(entry / "parent")
    return sysfs / "class" / "net" / parent / "device" if parent else entry / "device"


def _unusable(entry: Path, driver: str) -> str:
    """As far as sysfs tells: `transport doctor` asks the device itself."""
    if driver == "efa":
        return "EFA: it has no reliable connections (RC)"
    kind = _text(entry / "node_type")
    return "iWARP is not supported" if kind.startswith("4") else ""


def _port(folder: Path) -> NicPort:
    return NicPort(
        number=_number(folder.name, 0),
        state=_text(folder / "state").partition(": ")[2] or "unknown",
        link_layer=_text(folder / "link_layer") or "unknown",
        rate=_text(folder / "rate") or "unknown",
    )


def _gpus(sysfs: Path) -> Iterator[Gpu]:
    found = (entry for entry in _entries(sysfs / "bus" / "pci" / "devices") if _is_gpu(entry))
    for index, entry in enumerate(sorted(found, key=lambda entry: entry.name)):
        path, numa = _place(entry)
        vendor = _VENDORS[_number(_text(entry / "vendor"), 0, 16)]
        yield Gpu(index, entry.name, path, numa, vendor, _driver(entry))


def _is_gpu(entry: Path) -> bool:
    vendor = _VENDORS.get(_number(_text(entry / "vendor"), 0, 16))
    code = _number(_text(entry / "class"), 0, 16) >> 8
    is_screen = vendor == "Intel" and code == _VGA  # the processor's own
    return vendor is not None and code >> 8 in (_DISPLAY, _ACCELERATOR) and not is_screen
