"""What libibverbs and sysfs tell of the RDMA ports of this host. Every file may be missing.

May import ffi, gid, network and the standard library.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transport.ffi import check, ffi, lib, text
from transport.providers.verbs.gid import Gid, Kind, Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from transport.topology.network import Network

_MAX_PORTS = 256
_MAX_GIDS = 256  # an address vector names no higher index
_MAX_PKEYS = 1024
_LANES = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
# Gbit/s per lane by the code of the InfiniBand specification.
_LANE_RATE = {1: 2.5, 2: 5, 4: 10, 8: 10, 16: 14, 32: 25, 64: 50, 128: 100}
_ETHERNET = 2
_ACTIVE = 4
_STATES = {1: "down", 2: "initialising", 3: "armed", 4: "active", 5: "active, deferred"}


@dataclass(frozen=True, slots=True)
class Port:
    """One port. `number` 0 stands for a device that cannot be opened. Sizes in bytes."""

    device: str
    number: int
    state: int = 0
    ethernet: bool = False
    unusable: str = ""  # why it can have no reliable connections
    firmware: str = ""
    vendor: int = 0
    lid: int = 0
    max_mtu: int = 0
    active_mtu: int = 0
    max_message: int = 0
    max_region: int = 0
    max_regions: int = 0
    max_queue_pairs: int = 0
    max_send_depth: int = 0
    max_sges: int = 0
    max_reads_out: int = 0
    max_reads_in: int = 0
    atomics: int = 0
    on_demand: int = 0
    on_demand_ops: int = 0
    rate: float = 0.0  # GB/s, 1e9 bytes; 0 if unknown
    numa: int = -1
    driver: str = ""
    pci: str = ""  # address; empty for software devices

    @property
    def name(self) -> str:
        return f"{self.device}:{self.number}"

    @property
    def active(self) -> bool:
        return self.state == _ACTIVE

    @property
    def state_name(self) -> str:
        return _STATES.get(self.state, f"state {self.state}")


def list_ports(library: str | None, sysfs: Path) -> list[Port]:
    """All of them. Raises Unavailable where there is no libibverbs."""
    native = ffi.new("struct tn_verbs_port[]", _MAX_PORTS)
    count = check(lib.tn_verbs_ports(_path(library), native, _MAX_PORTS))
    return [_port(native[i], sysfs) for i in range(min(count, _MAX_PORTS))]


def _path(library: str | None) -> Any:
    return library.encode() if library else ffi.NULL


_SAME = (
    "state", "vendor", "lid", "max_mtu", "active_mtu", "max_message", "max_region", "max_regions",
    "max_queue_pairs", "max_send_depth", "max_sges", "max_reads_out", "max_reads_in", "atomics",
    "on_demand", "on_demand_ops",
)  # fmt: skip


def _port(facts: Any, sysfs: Path) -> Port:
    device = text(facts.device)
    folder = sysfs / "class" / "infiniband" / device
    driver = _driver(folder)
    unusable = text(facts.unusable)
    if driver == "efa" and not unusable:  # libraries that do not know what it is
        unusable = "EFA: it has no reliable connections (RC)"
    return Port(
        device=device,
        number=facts.port,
        ethernet=facts.link_layer == _ETHERNET,
        unusable=unusable,
        firmware=text(facts.firmware),
        rate=_rate(facts, folder),
        numa=_number(read(folder / "device" / "numa_node"), -1),
        driver=driver,
        pci=_pci(folder),
        **{name: getattr(facts, name) for name in _SAME},
    )


def _driver(folder: Path) -> str:
    try:
        return (folder / "device" / "driver").readlink().name
    except OSError:
        return ""


_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def _pci(folder: Path) -> str:
    """Of a virtual function its own, of a port of a dual-port device the port's function."""
    try:
        name = (folder / "device").resolve().name
    except (OSError, RuntimeError):
        return ""
    return name if _PCI.fullmatch(name) else ""


def _number(words: str, otherwise: int) -> int:
    try:
        return int(words)
    except ValueError:
        return otherwise


def _rate(facts: Any, folder: Path) -> float:
    """sysfs knows speeds whose codes do not fit the port's attributes."""
    told = re.match(r"([\d.]+) Gb/sec", read(folder / "ports" / str(facts.port) / "rate"))
    if told:
        return float(told[1]) / 8
    return _LANES.get(facts.active_width, 0) * _LANE_RATE.get(facts.active_speed, 0) / 8


def read(path: Path) -> str:
    """The file's text, or "" where there is none or it cannot be read."""
    return _look(path)[0]


def _look(path: Path) -> tuple[str, int]:
    """And the errno: EINVAL is for rows without an interface that this namespace has."""
    try:
        return path.read_text(errors="replace").strip(), 0
    except OSError as error:
        return "", error.errno or errno.EIO


def gid_rows(library: str | None, port: Port, sysfs: Path, network: Network) -> list[Gid]:
    """The filled rows of the GID table; all rows where none is filled."""
    raw = ffi.new("uint8_t[]", _MAX_GIDS * 16)
    count = check(
        lib.tn_verbs_gids(_path(library), port.device.encode(), port.number, raw, _MAX_GIDS)
    )
    table = bytes(ffi.buffer(raw, count * 16))
    values = [table[at : at + 16] for at in range(0, len(table), 16)]
    folder = sysfs / "class" / "infiniband" / port.device / "ports" / str(port.number)
    return described(values, folder / "gid_attrs", network) or [
        Gid(index, value) for index, value in enumerate(values)
    ]


def described(values: Sequence[bytes], attributes: Path, network: Network) -> list[Gid]:
    """The filled ones of `values`, with what sysfs and the interfaces here tell of them."""
    return [
        _row(index, value, attributes, network) for index, value in enumerate(values) if any(value)
    ]


def _row(index: int, raw: bytes, attributes: Path, network: Network) -> Gid:
    kind = Kind.parse(read(attributes / "types" / str(index)))
    address = Gid(index, raw).address
    named, error = _look(attributes / "ndevs" / str(index))
    interface = named or network.interface(address)
    prefix = network.prefix(address)
    return Gid(
        index,
        raw,
        kind,
        interface,
        _place(interface, error, network),
        network.is_overlay(address, interface),
        prefix + 96 * (prefix > 0 and address.version == 4),
    )


def _place(interface: str, error: int, network: Network) -> Place:
    if interface:
        seen = network.names is None or interface in network.names
        return Place.HERE if seen else Place.ELSEWHERE
    # The kernel has the attribute and refuses it: the interface is in another namespace. No such
    # file, or a path that may not be entered, says nothing.
    return Place.ELSEWHERE if error == errno.EINVAL else Place.UNTOLD


def pkeys(library: str | None, port: Port, sysfs: Path) -> dict[int, int]:
    """Keys in use by index, from libibverbs or, where that does not tell, from sysfs."""
    native = ffi.new("uint16_t[]", _MAX_PKEYS)
    count = check(
        lib.tn_verbs_pkeys(_path(library), port.device.encode(), port.number, native, _MAX_PKEYS)
    )
    if count:
        return {index: native[index] for index in range(count) if native[index]}
    folder = sysfs / "class" / "infiniband" / port.device / "ports" / str(port.number) / "pkeys"
    return {index: key for index, key in _listed(folder) if key}


def _listed(folder: Path) -> Iterator[tuple[int, int]]:
    try:
        files = sorted(folder.iterdir(), key=lambda file: _number(file.name, 0))
    except OSError:
        return
    for file in files:
        try:
            yield int(file.name), int(read(file), 16)
        except ValueError:
            continue
